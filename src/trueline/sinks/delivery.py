"""Hands what is new to one sink, in a thread of its own: a sink that hangs, refuses or is full loses what it does not
take, one sentence says so, and nobody waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from trueline.schema.finding import Finding
from trueline.schema.live import LiveSink, Numbers
from trueline.schema.text.reading import why

ROOM = 256
"""Findings, and looks' worth of numbers, that wait for a slow sink; further ones are dropped."""


class Delivery:
    """The thread of the sink ``name``, which ``open_sink`` makes; ``say`` takes a sentence for people."""

    def __init__(self, name: str, open_sink: Callable[[], LiveSink], *, say: Callable[[str], None]) -> None:
        self._name, self._open, self._say = name, open_sink, say
        self._waiting: queue.Queue[Finding | Sequence[Numbers] | None] = queue.Queue(ROOM)
        self._num_lost = {"findings": 0, "steps of numbers": 0}
        self._counting = threading.Lock()
        self._taking: Finding | Sequence[Numbers] | None = None
        self._thread = threading.Thread(target=self._work, name=f"trueline-sink-{name}", daemon=True)
        self._thread.start()

    def put(self, item: Finding | Sequence[Numbers]) -> None:
        """Queue a finding, or the numbers of some steps; where there is no room they are lost."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._lose(item, f"it is slow or hangs, and {ROOM} items wait for it")

    def close(self, *, within_s: float) -> None:
        """Wait at most ``within_s`` until the sink has taken what is queued and is closed; count what is left."""
        try:
            self._waiting.put(None, timeout=within_s / 2)
        except queue.Full:
            pass
        else:
            self._thread.join(within_s)
        if self._thread.is_alive():
            for item in (self._taking, *self._drain()):
                self._lose(item, f"it did not answer within {within_s:g} s")
        if any(self._num_lost.values()):
            counts = " and ".join(f"{count} {kind}" for kind, count in self._num_lost.items() if count)
            self._say(f"sink {self._name} did not get {counts}.")

    def _work(self) -> None:
        sink: LiveSink | None = None
        try:
            sink = self._open()
        except Exception as error:  # a library may raise anything
            failure = f"it cannot be opened ({type(error).__name__}: {why(error)})"
        while (item := self._waiting.get()) is not None:
            if sink is None:
                self._lose(item, failure)
                continue
            self._taking = item
            try:
                sink.finding(item) if isinstance(item, Finding) else sink.numbers(item)
            except Exception as error:
                self._lose(item, f"{type(error).__name__}: {why(error)}")
            self._taking = None
        if sink is not None:
            try:
                sink.close()
            except Exception as error:
                self._say(f"sink {self._name} could not be closed: {type(error).__name__}: {why(error)}.")

    def _drain(self) -> list[Finding | Sequence[Numbers] | None]:
        items: list[Finding | Sequence[Numbers] | None] = []
        while not self._waiting.empty():
            items.append(self._waiting.get_nowait())
        return items

    def _lose(self, item: Finding | Sequence[Numbers] | None, reason: str) -> None:
        """Count what is lost, and say why the first time."""
        if item is None:
            return
        with self._counting:
            first = not any(self._num_lost.values())
            if isinstance(item, Finding):
                self._num_lost["findings"] += 1
            else:
                self._num_lost["steps of numbers"] += len(item)
        if first:
            self._say(f"sink {self._name} does not take everything: {reason}. Training goes on.")
