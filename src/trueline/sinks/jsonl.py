"""JSON lines: ``jsonl:FILE`` appends a line for each finding and for the numbers of each step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from trueline.schema.finding import Finding
from trueline.schema.live import FindingVerdict, Numbers, finding_document
from trueline.schema.text.documents import finite, plain

LIBRARY = ""


def open_sink(target: str, run: str) -> JsonLines:
    """Appends to the file ``target``. Raises ``OSError``."""
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    return JsonLines(open(target, "a", encoding="utf-8"))


class JsonLines:
    """Writes to a text file; each call ends with a flush, so that whoever follows the file sees whole lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def numbers(self, rows: Sequence[Numbers]) -> None:
        self._write(*(step_numbers.to_json() for step_numbers in rows))

    def finding(self, finding: Finding) -> None:
        self._write(finding_document(finding))

    def verdict(self, verdict: FindingVerdict) -> None:
        self._write(verdict.to_json())

    def say(self, sentence: str) -> None:
        """One line for people."""
        self._write({"kind": "say", "text": sentence})

    def close(self) -> None:
        self._file.close()

    def _write(self, *documents: Mapping[str, Any]) -> None:
        lines = (
            json.dumps(finite(document), allow_nan=False, default=plain, ensure_ascii=False) for document in documents
        )
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()
