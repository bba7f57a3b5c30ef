"""A daemon thread that handles items in order, so that training does not wait, within a bound on bytes in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

MAX_BYTES = 256 * 2**20


class Background(Generic[Item]):
    """Calls ``handle`` for each item. At most ``max_bytes`` of items wait or are in work, or one item of any size.

    An exception of ``handle`` costs its item and comes out of the next call here, once; later ones until then are
    dropped. The lock is reentrant: a signal handler may ``drain`` while the same thread is in ``enqueue``.
    """

    def __init__(self, handle: Callable[[Item], None], *, max_bytes: int = MAX_BYTES) -> None:
        self._handle = handle
        self._max_bytes = max_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._held_bytes = 0
        self._num_unhandled = 0
        self._ends = False
        self._error: Exception | None = None
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._work, name="trueline-store", daemon=True)
        self._thread.start()

    def enqueue(self, item: Item, size_bytes: int) -> None:
        """Queue an item; wait while there is no room for it. Raises the exception of an earlier item, and then queues
        none.
        """
        with self._changed:
            self.raise_error()
            while self._held_bytes and self._held_bytes + size_bytes > self._max_bytes:
                self._changed.wait()
            self.raise_error()
            self._items.append((item, size_bytes))
            self._held_bytes += size_bytes
            self._num_unhandled += 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until every item is handled."""
        with self._changed:
            while self._num_unhandled:
                self._changed.wait()

    def close(self) -> None:
        """Handle the queued items, end the thread, and raise the exception of an item, if there was one."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the exception of an item since the last call, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._items and not self._ends:
                    self._changed.wait()
                if not self._items:
                    return
                item, size_bytes = self._items.popleft()
            error = self._attempt(item)
            del item
            with self._changed:
                self._held_bytes -= size_bytes
                self._num_unhandled -= 1
                self._error = self._error or error
                self._changed.notify_all()

    def _attempt(self, item: Item) -> Exception | None:
        try:
            self._handle(item)
        except Exception as error:
            return error
        return None
