"""A Sink that may be lost: a full disk or a vanished directory ends the Run, never the training."""

from __future__ import annotations

import contextlib

from trueline.capture.child_env import tell_unseen
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.roles import Record, Sink
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why

_log = SafeLogger()


class SafeSink:
    """Passes on to ``sink`` until it raises OSError once; after that everything is dropped, and a Finding and a
    warning say since which step.
    """

    def __init__(self, sink: Sink, *, rank: int) -> None:
        self._sink: Sink | None = sink
        self.folder: str | None = getattr(sink, "path", None)
        self._rank = rank
        self.step = 0

    def describe(self, manifest: Manifest | None, env: RankEnv) -> None:
        if self._sink is not None:
            try:
                self._sink.describe(manifest, env)
            except OSError as error:
                self._lose(error)

    def write(self, record: Record) -> None:
        if self._sink is not None:
            try:
                self._sink.write(record)
            except OSError as error:
                self._lose(error)

    def degraded(self, part: str, error: Exception) -> None:
        """Say that watching of ``part`` ended with an exception of ours."""
        _log.debug("trueline: %s failed", part, exc_info=error)
        reason = f"{type(error).__name__}: {why(error)}"
        claim = f"Watching of {part} stopped on rank {self._rank} at step {self.step}: {reason}."
        _log.warning("trueline: %s Training goes on.", claim)
        self.write(self._degraded(claim, "Report this with the message above; the other signals are still recorded."))

    def note_unwatched(self, name: str) -> None:
        """Say that another model is trained on this rank and not watched."""
        claim = (
            f"Model '{name}' is trained on rank {self._rank} and not watched: not all ranks began to train one of this "
            "name at the same time, or there are too many."
        )
        self.write(self._degraded(claim, "Look whether every rank trains the same models."))

    def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.close()
            except OSError as error:
                _log.warning("trueline: the last steps of rank %s could not be written: %s", self._rank, error)

    def _degraded(self, claim: str, todo: str) -> Finding:
        ranks = (self._rank,)
        return Finding(
            code=WATCH_DEGRADED, severity="info", claim=claim, ranks=ranks, step_first=self.step, next=(todo,)
        )

    def _lose(self, error: OSError) -> None:
        sink, self._sink = self._sink, None
        claim = f"The Run could not be written from step {self.step} on rank {self._rank}: {why(error)}."
        _log.warning("trueline: %s Training goes on, unrecorded.", claim)
        tell_unseen(claim)  # the file is there already, which a disk without inodes lets nobody make
        finding = self._degraded(claim, "Free space or choose another --out, and start a new Run.")
        if sink is not None:
            with contextlib.suppress(OSError):
                sink.write(finding)
            with contextlib.suppress(OSError):
                sink.close()
