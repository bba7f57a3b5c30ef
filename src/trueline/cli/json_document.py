"""The one JSON document that a verb prints with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.cli.options import Bounds
from trueline.render.bounded import ORDERS, document_text, page_of


def print_document(document: Mapping[str, Any], *, compact: bool = False) -> None:
    """Print ``document`` on standard output, ``compact`` in one line."""
    print(document_text(document, compact=compact))


def print_bounded(document: Mapping[str, Any], kind: str, bounds: Bounds) -> None:
    """Print ``document``, or the page of it that is asked for, with what matters most in its ``kind`` first."""
    if bounds.max_bytes is None:
        print_document(document)
    else:
        # one line: whoever bounds bytes pays for each blank
        page = page_of(document, ORDERS[kind], max_bytes=bounds.max_bytes, page=bounds.page)
        print_document(page, compact=True)
