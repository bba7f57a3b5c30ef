"""`judged.json`: what was judged of a Run, so that the next who judges it need not begin at its first step.

Everything in it can be made again from the rows, so it is written without waiting for the disk, and one that is lost,
torn or of another version is no problem of the Run: it counts as none.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from trueline.schema.text.documents import decode, encode
from trueline.store import file_names
from trueline.store.log.durable import open_replacement

VERSION = 1
"""Of the document; one of another version is not read."""


def read_judged(path: str) -> dict[str, Any] | None:
    """What is kept in the Run at ``path``; None where there is nothing, or not what was written."""
    if "://" in path:
        return None
    try:
        with open(os.path.join(path, file_names.JUDGED), "rb") as file:
            document, sealed = decode(file.read())
    except (OSError, ValueError):
        return None
    return document if sealed and document.get("version") == VERSION else None


def write_judged(path: str, document: dict[str, Any]) -> None:
    """Keep ``document`` in the Run at ``path``, in place of what was there; nothing where that cannot be written, as in
    a Run that may be read only, or one in an object store.
    """
    if "://" in path:
        return
    with contextlib.suppress(OSError):
        open_replacement(os.path.join(path, file_names.JUDGED), encode({"version": VERSION, **document})).close()
