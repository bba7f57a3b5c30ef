"""The door of every reader of files that others wrote: a file is read, or refused in one sentence."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Generator
from typing import Any, cast

from trueline.schema.errors import InputError, TruelineError
from trueline.schema.text.documents import parsed
from trueline.schema.text.secrets import without_credentials

_LONGEST = 200
"""Characters of a name, or of what a library says, that stand in a message."""

SPARE_BYTES = 256 * 2**20
TIMES = 64
"""What a file may take in memory: so many times its own size, and so many bytes more, as it may hold views that repeat
what it stores. Checked before anything is made of it."""


@contextlib.contextmanager
def reading(subject: str, todo: str, *, error: type[TruelineError] = InputError) -> Generator[None]:
    """Makes of whatever reading ``subject`` raises an ``error`` that says why, and what ``todo``.

    Errors of our own pass as they are. ``torch.distributed.checkpoint`` raises what is no ``Exception``.
    """
    try:
        yield
    except (TruelineError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:
        raise error(f"{subject} cannot be read: {why(reason)}. {todo}") from reason


def read_table(path: str, subject: str, todo: str, *, error: type[TruelineError] = InputError) -> dict[str, Any]:
    """The keys of a TOML file, or of the object in a ``.json`` file. Raises ``error``."""
    with reading(subject, todo, error=error):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        content = parsed(text) if path.endswith(".json") else tomllib.loads(text)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, expected a table of keys")
        return cast(dict[str, Any], content)


def require_room(needed_bytes: int, held_bytes: int) -> None:
    """Raise ``ValueError`` where a file of ``held_bytes`` declares more than can be in it."""
    if needed_bytes > TIMES * held_bytes + SPARE_BYTES:
        raise ValueError(f"it declares {needed_bytes:,} bytes of values, and has {held_bytes:,} bytes itself")


def why(reason: BaseException) -> str:
    """What an error of a library says, in part of a sentence."""
    if isinstance(reason, RecursionError):
        return "it is nested too deeply"
    if isinstance(reason, MemoryError):
        return "it needs more memory than there is"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    text = shortened(without_credentials(text).strip().split("\n", 1)[0].rstrip("."))
    return text if text and not isinstance(reason, KeyError) else f"{type(reason).__name__} {text}".rstrip()


def shortened(text: str) -> str:
    """A text that may be of any length, as it may stand in a message."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"


def shown(value: Any) -> str:
    """A value that a file has, as it may stand in a message."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists in lists
        return f"a {type(value).__name__}"
