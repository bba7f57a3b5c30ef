"""Pages and skills for coding agents and other programs, as they stand in the package."""

from __future__ import annotations

import re
from importlib.resources import files

AGENTS = "agents"
"""The name of the page about all of it."""
_DESCRIPTION = re.compile(r"^description: (.*)$", re.MULTILINE)


def text_of(name: str) -> str:
    """The page ``name``."""
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8").strip()


def skills() -> dict[str, str]:
    """The text of each skill by its name: front matter, and what to do."""
    folders = sorted((files(__name__) / "skills").iterdir(), key=lambda folder: folder.name)
    return {
        folder.name: (folder / "SKILL.md").read_text(encoding="utf-8").strip()
        for folder in folders
        if (folder / "SKILL.md").is_file()
    }


def described(skill: str) -> str:
    """What the text of a skill says that it is for."""
    match = _DESCRIPTION.search(skill)
    return match[1] if match is not None else ""
