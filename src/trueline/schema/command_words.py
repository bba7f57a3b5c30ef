"""What the words of a command say of the job that it runs."""

from __future__ import annotations

from collections.abc import Iterable


def script_in(words: Iterable[str]) -> str | None:
    """The first Python file among them, which is the script; None where there is none. An option's value is none."""
    return next((word for word in words if word.endswith(".py") and not word.startswith("-")), None)
