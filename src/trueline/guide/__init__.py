"""Pages for coding agents and other programs, as they stand in the package."""

from __future__ import annotations

from importlib.resources import files

AGENTS = "agents"
"""The name of the page about all of it."""


def text_of(name: str) -> str:
    """The page ``name``."""
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8").strip()
