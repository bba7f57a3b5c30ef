"""Processes that write a Run and end early, by a signal or at one of their system calls; shared by what tests rows and
what tests recorded steps.

A test gives Python source that defines ``make(path)``, a writer, and ``write(writer, tell)``, which calls
``tell(number)`` after each piece. Children are forked from one process that has imported what they need.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_FORK = """
import os, signal, sys
import pyarrow.compute, pyarrow.parquet  # which a writer imports when it seals

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""

_ONE_AFTER_THE_OTHER = """
def tell(number):
    os.write(1, b"%d\\n" % number)

for attempt in range(int(sys.argv[2])):
    fork(lambda: (tell(os.getpid()), write(make(f"{sys.argv[1]}/{attempt}"), tell)))
    os.write(1, b"gone\\n")
"""

_AT_EACH_CALL = """
import tempfile

CALLS = ("open", "write", "pwrite", "fsync", "replace", "close", "remove")
REAL = {name: getattr(os, name) for name in CALLS}
REAL["fsync"] = lambda handle: None  # what a killed process wrote is there without

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def arm(fatal, when):
    left = [fatal]
    def armed(name):
        def run(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0 and when == "before":
                die()
            if left[0] == 0 and when == "within":
                REAL[name](args[0], args[1][: len(args[1]) // 2], *args[2:])
                die()
            done = REAL[name](*args, **kwargs)
            if left[0] == 0:
                die()
            return done
        return run
    for name in ("write", "pwrite") if when == "within" else CALLS:
        setattr(os, name, armed(name))

def train(path, fatal, when):
    log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.fsync = REAL["fsync"]
    writer = make(path)
    arm(fatal, when)
    write(writer, lambda number: REAL["write"](log, b"%d\\n" % number))

with tempfile.TemporaryDirectory() as folder:  # whatever is still imported as steps are written is, once
    write(make(folder), lambda number: None)

for when, stride in (("before", 2), ("within", 1), ("after", 2)):
    for fatal in range(1, 1000, stride):
        if fork(lambda: train(f"{sys.argv[1]}/{when}-{fatal}", fatal, when)) == 0:
            break
"""


def start(code: str, *args: object, **kwargs: object) -> subprocess.Popen[bytes]:
    """Python with ``code``, its standard output piped and unbuffered."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, **kwargs)


def signalled(
    code: str, folder: Path, moments: Sequence[tuple[int, int]], number: signal.Signals
) -> Iterator[tuple[Path, int]]:
    """For each of ``moments``, the Run of a writer that got signal ``number`` then, and how many pieces it had told.

    A moment is a number of told pieces to wait for, and how far to count before the signal is sent.
    """
    writers = start(_FORK + code + _ONE_AFTER_THE_OTHER, folder, len(moments))
    for attempt, (num_told, count_to) in enumerate(moments):
        pid = int(writers.stdout.readline())
        for _ in range(num_told):
            writers.stdout.readline()
        for _ in range(count_to):
            pass
        os.kill(pid, number)
        yield folder / str(attempt), num_told + sum(1 for _ in iter(writers.stdout.readline, b"gone\n"))
    assert writers.wait(timeout=200) == 0
    writers.stdout.close()


def killed_at_each_call(code: str, folder: Path) -> list[tuple[Path, int]]:
    """Runs of writers that were killed before, within or after a system call, and how many pieces each had told.

    Every write half through; of all calls, sealing and closing included, every other one before and after it, which is
    once between any two of them.
    """
    done = start(_FORK + code + _AT_EACH_CALL, folder)
    done.communicate(timeout=230)
    assert done.returncode == 0
    deaths = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(path, len(path.with_name(f"{path.name}.log").read_text().split())) for path in deaths]


def damage(run) -> list[str]:
    """Problems of the Run but for the frame in flight, and for the environment that these ranks do not describe."""
    return [problem for problem in run.problems if not problem.torn and not problem.startswith("rank 0: it wrote")]
