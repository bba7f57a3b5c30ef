"""The one JSON document that a verb prints with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.render.bounded import document_text


def print_document(document: Mapping[str, Any], *, compact: bool = False) -> None:
    """Print ``document`` on standard output, ``compact`` in one line."""
    print(document_text(document, compact=compact))
