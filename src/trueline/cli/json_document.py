"""The one JSON document that a verb prints with `--json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trueline.render.wording import UNPRINTABLE
from trueline.schema.text.documents import finite


def print_document(document: Mapping[str, Any]) -> None:
    """Print ``document`` on standard output; NaN and infinities, for which JSON has no form, become texts."""
    text = json.dumps(finite(document), allow_nan=False, default=str, ensure_ascii=False, indent=1)
    print(escaped(text))


def escaped(document: str) -> str:
    """A JSON text with what steers a terminal, or what reads a log, as JSON writes it; it stands in texts only."""
    text = UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
    return re.sub(r"##(?=[a-z]*\[)", r"#\\u0023", text)
