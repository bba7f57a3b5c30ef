"""The one JSON document that a verb prints with `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trueline.schema.text.documents import finite


def print_document(document: Mapping[str, Any]) -> None:
    """Print ``document`` on standard output; NaN and infinities, for which JSON has no form, become texts."""
    print(json.dumps(finite(document), allow_nan=False, default=str, ensure_ascii=False, indent=1))
