"""An open file that is given back with the last reference to it: a training process may have no more than 1,024, and a
writer that could not begin, or that nobody closed, must not keep any.
"""

from __future__ import annotations

import contextlib
import os
import weakref


class Descriptor:
    """The file descriptor ``fd``, which is this object's to close. ``number`` is what the functions of ``os`` take."""

    def __init__(self, fd: int) -> None:
        self.number = fd
        self._forgotten = weakref.finalize(self, _close, fd)
        self._forgotten.atexit = False

    def close(self) -> None:
        """Give it back; a second call does nothing. Raises ``OSError`` where the system says so, and it is gone then
        too.
        """
        if self._forgotten.detach() is not None:
            os.close(self.number)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
