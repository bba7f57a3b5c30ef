"""Every document that a test of the command line has printed keeps to the JSON Schema of its kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.schemas import validator

from trueline.cli import json_document
from trueline.judge.json_schemas import NAMES
from trueline.render.bounded import ORDERS, document_text, page_of

MOST_ITEMS = 50
"""Items of a list that are looked at: rows of a comparison are thousands, and alike."""


def _cut(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _cut(value) for key, value in part.items()}
    return [_cut(item) for item in part[:MOST_ITEMS]] if isinstance(part, list | tuple) else part


@pytest.fixture(autouse=True)
def _documents_keep_to_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    print_it = json_document.print_bounded

    def print_checked(document: dict[str, Any], kind: str, bounds: Any) -> None:
        if kind in NAMES:
            part = _cut(document)
            validator(kind).validate(json.loads(document_text(part)))
            validator(kind, is_closed=False).validate(page_of(part, ORDERS[kind], max_bytes=4000))
        print_it(document, kind, bounds)

    monkeypatch.setattr(json_document, "print_bounded", print_checked)
