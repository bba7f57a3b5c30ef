"""Lines of the job's sources around a place, as the Run has them."""

from __future__ import annotations

import os
import re
from typing import Any

from trueline.store.reader import Run

LINES = 20
"""Lines before a place and behind it."""
_FILE_LINE = re.compile(r"(?P<file>\S+\.py):(?P<line>\d+)")


def lines_at(run: Run, frame: str) -> dict[str, Any] | None:
    """The lines around ``frame`` (a text that has ``file:line``), as they were when the job began; None where it names
    none, and ``missing`` where the Run has no text of the file.
    """
    match = _FILE_LINE.search(frame)
    if match is None:
        return None
    file, line = match["file"], int(match["line"])
    text = _texts(run).get(file) or next(
        (text for name, text in _texts(run).items() if os.path.basename(name) == os.path.basename(file)), None
    )
    if text is None:
        return {"file": file, "line": line, "missing": "the Run has no text of this file"}
    lines = text.splitlines()
    first = max(line - LINES, 1)
    numbered = [f"{number}: {words}" for number, words in enumerate(lines[first - 1 : line + LINES], first)]
    return {"file": file, "line": line, "lines": numbered}


def _texts(run: Run) -> dict[str, str]:
    facts = [env.facts for env in run.env.values() if env.facts is not None]
    return {name: text for fact in facts for name, text in fact.scripts.items()}
