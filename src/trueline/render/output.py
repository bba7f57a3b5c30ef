"""Files that a verb writes for people: checked before anything is read, and put in place whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trueline.schema.errors import InputError, RunExistsError


def writable_target(
    path: str | os.PathLike[str], *, overwrite: bool, kind: str = "report", example: str = "report.html"
) -> Path:
    """``path`` as a path that a file may be written to; raises before any Run is read.

    Raises ``InputError`` for a directory, a device or a path in no directory, ``RunExistsError`` where ``path`` exists
    and ``overwrite`` is not set. ``kind`` names the file in messages, ``example`` is a name that it may have.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(
            f"The {kind} cannot be written to '{path}': that is a directory. Pass a file, as in {example}."
        )
    if target.exists() and not target.is_file():  # os.replace would put a file in the place of /dev/null
        raise InputError(f"The {kind} cannot be written to '{path}': that is no file. Pass a file, as in {example}.")
    if target.exists() and not overwrite:
        raise RunExistsError(f"'{path}' exists already. Pass another file, or overwrite it with --overwrite.")
    if not target.parent.is_dir():
        raise InputError(
            f"The {kind} cannot be written to '{path}': '{target.parent}' is no directory. Create it first."
        )
    return target


@contextlib.contextmanager
def replacing(target: Path, *, kind: str = "report") -> Iterator[Path]:
    """A path next to ``target`` to write to, which takes its place at the end; an ``OSError`` leaves ``target`` alone
    and becomes an ``InputError``.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"The {kind} cannot be written to '{target}': {reason}. Pass another place.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def save(target: Path, text: str, *, kind: str = "report") -> None:
    """Put ``text`` at ``target``, whole or not at all. Raises ``InputError`` where it cannot be written."""
    with replacing(target, kind=kind) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
