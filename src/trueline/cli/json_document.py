"""The one JSON document that a verb prints with `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def print_document(document: Mapping[str, Any]) -> None:
    """Print ``document`` on standard output; NaN and infinities, for which JSON has no form, become texts."""
    print(json.dumps(finite(document), allow_nan=False, default=str, ensure_ascii=False, indent=1))


def finite(value: Any) -> Any:
    """The value with "NaN", "Infinity" and "-Infinity" for what JSON has no number for; null stays not measured."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value
