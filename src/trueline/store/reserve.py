"""Room on the disk for a last word: what became of a Run must still be told when nothing else fits."""

from __future__ import annotations

import contextlib
import os

SIZE_BYTES = 4096
"""One block of most file systems; a Finding takes less than 1 KiB."""


class Reserve:
    """A file that takes up room until it is given up. Where it cannot be made there is none."""

    def __init__(self, path: str) -> None:
        self._path = path
        with contextlib.suppress(OSError), open(path, "wb") as file:
            file.write(os.urandom(SIZE_BYTES))  # zeros may be stored as nothing

    def give_up(self) -> bool:
        """Free the room; whether there was any left to free."""
        try:
            os.remove(self._path)
        except OSError:
            return False
        return True
