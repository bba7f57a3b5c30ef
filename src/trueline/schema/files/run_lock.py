"""Who writes a Run: one that a living job writes is not replaced, and a job whose Run was taken away learns of it.

Each rank keeps a file next to its journal for as long as it writes, and updates its time while it does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from trueline.schema.descriptor import Descriptor
from trueline.schema.errors import RunExistsError

FOLDER = "journal"
PATTERN = ".rank-*-owner.tmp"
LOOK_S = 1.0
"""Time between two looks whether the Run is still one's own: a ``stat``, of a millisecond on a file system over a
network.
"""
BEAT_S = 10.0
STALE_S = 300.0
"""A process of another machine that has written nothing for so long counts as gone: thirty beats."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that writes a Run. ``machine`` is the boot and the PID namespace that ``pid`` is of, '' where the
    system does not say; ``started`` (clock ticks since boot, as text) distinguishes it from a later process with that
    pid.
    """

    host: str
    pid: int
    machine: str
    started: str

    @property
    def name(self) -> str:
        """The process in words."""
        if self == this_process():
            return "this process"
        return f"process {self.pid} on {self.host}"

    @property
    def ends(self) -> str:
        """How it is brought to leave the Run alone: the advice behind "or ... first"."""
        if self == this_process():
            return "close its watch (watch.close())"
        if self.machine and self.machine == this_process().machine:
            return f"end that process (kill {self.pid})"
        return f"end it there: {STALE_S / 60:g} minutes after its last step it counts as gone"


class Hold:
    """One rank's claim to its share of the Run at ``run``, until it is released. Every failure is an ``OSError``:
    ``FileExistsError`` where another has it, unless that is over and the claim ``takes_over``.
    """

    def __init__(self, run: str, *, rank: int, takes_over: bool = False) -> None:
        self._path = os.path.join(run, FOLDER, _pattern(rank))
        if takes_over:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)
        # Kept open: the file system gives its number to no other file as long as that is so.
        self._file = Descriptor(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        stat = os.fstat(self._file.number)
        self._file_id = stat.st_dev, stat.st_ino
        self._looks_at = self._beats_at = 0.0
        with contextlib.suppress(OSError):  # who it is, no other needs to know as long as the file is new enough
            os.write(self._file.number, json.dumps(asdict(this_process())).encode())

    def beat(self) -> None:
        """Update the time of the file, and now and then ``require`` that it is there."""
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + LOOK_S
            self.require()
        if now >= self._beats_at:
            self._beats_at = now + BEAT_S
            with contextlib.suppress(OSError):
                os.utime(self._file.number)

    def require(self) -> None:
        """Raise ``OSError`` where the share is another's now, or the Run was removed: nothing may be written there."""
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "The Run was removed while it was being written", self._path) from None
        except OSError:
            return  # no proof; what is written next meets the same
        if (stat.st_dev, stat.st_ino) != self._file_id:
            owner = _read_owner(Path(self._path))
            new_owner = f" by {owner.name}" if owner else ""
            raise OSError(errno.ESTALE, f"The Run was taken over{new_owner}, which writes there now", self._path)

    def release(self) -> None:
        """Give the share back: nobody writes it any more."""
        with contextlib.suppress(OSError):
            self.require()
            os.remove(self._path)
        with contextlib.suppress(OSError):
            self._file.close()


def owner_left(run: str | os.PathLike[str], rank: int) -> bool:
    """Whether ``rank`` of the Run at the local path ``run`` has a share that nobody released."""
    return Path(run, FOLDER, _pattern(rank)).exists()


def living(run: str | os.PathLike[str], *, rank: int | None = None, proven: bool = False) -> Owner | None:
    """A process that still writes the Run at the local path ``run``, or one rank's share of it; None without. With
    ``proven``, only another one of this machine that is there: one of another machine may have been killed just now.
    """
    for path in sorted(Path(run, FOLDER).glob(_pattern(rank))):
        owner = _read_owner(path)
        if owner is not None and owner.machine and owner.machine == this_process().machine:
            if _started(owner.pid) == owner.started and not (proven and owner.pid == os.getpid()):
                return owner
        elif not proven and _age_s(path) < STALE_S:
            return owner or Owner(host="an unknown machine", pid=0, machine="", started="")
    return None


def require_ended(run: str | os.PathLike[str], *, proven: bool = False) -> None:
    """Raise ``RunExistsError`` where ``run`` is still being written; ``proven`` as in ``living``."""
    writer = living(run, proven=proven)
    if writer is not None:
        raise RunExistsError(
            f"The Run '{run}' is still being written by {writer.name}, so it is left alone. Pass another path, or "
            f"{writer.ends} first."
        )


def this_process() -> Owner:
    """The process that asks."""
    pid = os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        machine = ""
    return Owner(host=socket.gethostname(), pid=pid, machine=machine, started=_started(pid))


def _pattern(rank: int | None) -> str:
    return PATTERN if rank is None else PATTERN.replace("*", f"{rank:05d}")


def _started(pid: int) -> str:
    """When a process of this machine started; '' where there is none, or only its exit status is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything; proc(5) counts from 1
    return "" if fields[0] in "ZX" else fields[22 - 3]


def _read_owner(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _age_s(path: Path) -> float:
    """Seconds since a file was freshened, by the clock of its file system: those of two machines differ."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        probe.touch()
        try:
            return probe.stat().st_mtime - path.stat().st_mtime
        finally:
            probe.unlink()
    except FileNotFoundError:
        return STALE_S
    except OSError:
        return time.time() - path.stat().st_mtime
