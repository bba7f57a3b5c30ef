"""`judged.json`: what was judged of a Run, so that the next who judges it need not begin at its first step.

Arrays are in it, those that are large in files of their own beside it (`judged/`), which it names. Everything can be
made again from the rows, so nothing waits for the disk, and what is lost, torn or of another version is no problem of
the Run: it counts as none.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.text.documents import decode, encode
from trueline.store import file_names
from trueline.store.log.durable import open_replacement

VERSION = 2
"""Of the document; one of another version is not read."""

LARGE = 1 << 16
"""Bytes from which on an array has a file of its own."""

_NAME = re.compile(r"[0-9a-f]{8}-[0-9]+\.bin")
"""CRC32 and number of the bytes of an array."""


def read_judged(path: str) -> dict[str, Any] | None:
    """Results that are kept in the Run at ``path``; None where there is nothing, or not what was written."""
    if "://" in path:
        return None
    try:
        with open(os.path.join(path, file_names.JUDGED), "rb") as file:
            document, sealed = decode(file.read())
    except (OSError, ValueError):
        return None
    return document if sealed and document.get("version") == VERSION else None


def write_judged(path: str, document: dict[str, Any], keeps: Sequence[Sequence[Any]] = ()) -> None:
    """Keep ``document`` in the Run at ``path``, in place of what was there, and of the files of arrays those that
    ``keeps`` (``stored``) names; nothing where that cannot be written, as in a Run that may be read only, or one in an
    object store.
    """
    if "://" in path:
        return
    with contextlib.suppress(OSError):
        open_replacement(os.path.join(path, file_names.JUDGED), encode({"version": VERSION, **document})).close()
        folder, kept_names = os.path.join(path, file_names.JUDGED_DIR), {entry[2] for entry in keeps}
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name not in kept_names:
                os.remove(os.path.join(folder, name))


def stored(path: str, array: NDArray[Any]) -> list[Any]:
    """What says in the document of the Run at ``path`` what an array is; one that is large is written first, unless it
    was read from there. Raises ``OSError`` where it cannot be.
    """
    if isinstance(array, np.memmap):
        return [array.dtype.str, list(array.shape), os.path.basename(str(array.filename))]
    data = array.tobytes()
    if len(data) < LARGE or "://" in path:
        return [array.dtype.str, list(array.shape), base64.b64encode(zlib.compress(data, 1)).decode()]
    folder, name = os.path.join(path, file_names.JUDGED_DIR), f"{zlib.crc32(data):08x}-{len(data)}.bin"
    os.makedirs(folder, exist_ok=True)
    open_replacement(os.path.join(folder, name), data).close()
    return [array.dtype.str, list(array.shape), name]


def restored(path: str, dtype: str, shape: Sequence[int], content: str) -> NDArray[Any]:
    """The array that ``stored`` told of. Raises ``ValueError`` where its file is not what was written, ``OSError``
    where it is gone, and ``zlib.error``.
    """
    if not _NAME.fullmatch(content):
        return np.frombuffer(zlib.decompress(base64.b64decode(content)), np.dtype(dtype)).reshape(shape)
    array = np.memmap(os.path.join(path, file_names.JUDGED_DIR, content), np.dtype(dtype), "r", shape=tuple(shape))
    if is_whole(content, array.data):
        return array
    raise ValueError(f"{content} is not what was written")


def is_whole(name: str, data: Any) -> bool:
    """True if the file of an array holds what its ``name`` says."""
    return name == f"{zlib.crc32(data):08x}-{memoryview(data).nbytes}.bin"
