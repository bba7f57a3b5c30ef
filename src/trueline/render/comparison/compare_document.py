"""The document of `compare --json`: the comparison, its verdict in words, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueline.comparison.result import Comparison
from trueline.judge.actions import actions_of
from trueline.render.comparison.compare_story import Story


def compare_document(comparison: Comparison, story: Story, written: Sequence[str] = ()) -> dict[str, Any]:
    """The whole of it, with the files that were ``written``."""
    lines = (f"`{line}`" if line.startswith("trueline ") else line for line in story.next)
    words = {"verdict": story.headline, "actions": [action.to_json() for action in actions_of(lines)]}
    return {**comparison.to_json(), **words, "written": list(written)}
