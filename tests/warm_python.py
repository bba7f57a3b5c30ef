"""A `python` that need not import torch: each start is a fork of a process that has, which saves five seconds. Beside
it a `trueline`, which has imported its verbs.

For tests whose fact is what a started process does under `trueline run`, not how Python starts. Working directory,
environment, sitecustomize, standard streams, exit status and signals are those of a process of its own, and `import
torch` goes through the import system, so that what waits for it is called.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import itertools
import json
import multiprocessing
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.demo import ranks
from trueline.schema.plugins import entry_points

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, struct, sys
files = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)]
files = sorted(number for number in files if number < 3 or os.get_inheritable(number))
given = {{"argv": [*{words!r}, *sys.argv[1:]], "environ": dict(os.environ), "cwd": os.getcwd(), "files": files}}
words = json.dumps(given).encode()
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
server.sendmsg([struct.pack("!Q", len(words))], [rights])
server.sendall(words)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
status = struct.unpack("!i", server.recv(4))[0]
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""
"""What stands for the interpreter: hands everything on, signals too, and ends as the fork does. A fork whose client was
killed is killed as well.
"""

M_PERTURB = -6
"""Of ``mallopt(3)`` in glibc's ``malloc.h``."""

MAX_FILES = 64
"""How many open files a start can hand on."""


@contextlib.contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """The path of such a `python`, in ``folder``, beside which is the `trueline`."""
    address, python, trueline = (str(folder / name) for name in ("socket", "python", "trueline"))
    for client, words in ((python, [python]), (trueline, [python, "-m", "trueline"])):
        text = CLIENT.format(python=sys.executable, address=address, words=words)
        Path(client).write_text(text, encoding="utf-8")
        Path(client).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        server = ranks._context().Process(target=_serve, args=(listener,), daemon=True)
        server.start()
    yield python
    server.kill()
    server.join()


class Program:
    """A start of the warm ``python``, which listens in ``folder``, without a process for the client; in a session of
    its own.
    """

    def __init__(self, python: str, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path):
        start = {"argv": [python, *words], "environ": dict(environ), "cwd": str(folder), "files": [0, 1, 2]}
        text = json.dumps(start | {"session": True}).encode()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(str(Path(python).parent / "socket"))
        with open(os.devnull, "rb") as nothing, printed.open("ab") as file:
            files = array.array("i", [nothing.fileno(), file.fileno(), file.fileno()])
            self._server.sendmsg([struct.pack("!Q", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            self._server.sendall(text)
        self._status: int | None = None

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None: it has not ended ``timeout_s`` later."""
        if self._status is None and select.select([self._server], [], [], timeout_s)[0]:
            self._status = struct.unpack("!i", self._server.recv(4))[0]
        return self._status

    def end(self) -> None:
        """End what is left of its session."""
        if self._status is None:
            self._server.send(bytes([signal.SIGKILL]))
            self.wait(60.0)
        self._server.close()


@dataclass(frozen=True)
class _Started:
    """A fork that is the program of ``client``, ``is_session`` with all that it starts."""

    client: socket.socket
    pid: int
    ended: int
    is_session: bool

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.is_session:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                    return
            os.kill(self.pid, number)  # a fork that has not opened its session yet, too

    def close(self) -> None:
        self.client.close()
        os.close(self.ended)


def _serve(listener: socket.socket) -> None:
    """Fork the program of every start, hand on the signals of its client, and tell that how it ended."""
    from trueline.capture.job.job_facts import packages  # imports torch, which the server has

    _forget_exits()
    entry_points("trueline.checks")  # of the packages that all starts have: reading them takes 25 ms each time
    packages()
    gc.collect()
    gc.freeze()  # else each start would copy what was imported, to see whether it is garbage or a model
    started: dict[int, _Started] = {}  # by the file that can be read: the client's, and that of the end
    while True:
        ready, _, _ = select.select([listener, *started], [], [])
        for file in ready:
            if file is listener:
                client, _ = listener.accept()
                if (program := _start(client, {listener, *started.values()})) is not None:
                    started |= {client.fileno(): program, program.ended: program}
            elif (program := started.get(file)) is None:
                continue  # it ended just now
            elif file == program.ended:
                status = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])
                if program.is_session:  # whatever it started ends with it
                    program.signal(signal.SIGKILL)
                with contextlib.suppress(OSError):
                    program.client.sendall(struct.pack("!i", status))
                del started[program.client.fileno()], started[program.ended]
                program.close()
            else:
                number = program.client.recv(1)
                program.signal(number[0] if number else signal.SIGKILL)


def _start(client: socket.socket, others: set[socket.socket | _Started]) -> _Started | None:
    """Fork the program, which closes what is of ``others``; None where nobody waits for it any more."""
    try:
        head, ancillary, *_ = client.recvmsg(8, socket.CMSG_SPACE(4 * MAX_FILES))
        files = array.array("i", ancillary[0][2])
        size, words = struct.unpack("!Q", head)[0], b""
        while len(words) < size:
            words += client.recv(size - len(words))
    except (OSError, IndexError):
        client.close()
        return None
    start = json.loads(words)
    is_session = start.get("session", False)
    pid = os.fork()
    if pid == 0:
        if is_session:
            os.setsid()
        client.close()
        for other in others:
            other.close()
        _become(start, list(files))
    for file in files:
        os.close(file)
    return _Started(client, pid, os.pidfd_open(pid), is_session)


def _forget_exits() -> None:
    """Let no program do at its end what the server would at its own: to take down what torch registered takes as long
    as some steps of training.
    """
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False


def _become(start: dict[str, Any], files: list[int]) -> None:
    """Be the program that the client was started as, to the end."""
    out_of_the_way = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1000) for file in files]
    for number, file in zip(start["files"], out_of_the_way, strict=True):
        os.dup2(file, number)
    for file in {*files, *out_of_the_way} - {*start["files"]}:
        os.close(file)
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["environ"])
    if pattern := os.environ.get("MALLOC_PERTURB_"):  # which the C library reads as a process starts
        ctypes.CDLL(None).mallopt(M_PERTURB, int(pattern))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.current_process()._config["daemon"] = False  # may have children
    multiprocessing.set_executable(start["argv"][0])  # of the server of a pool
    multiprocessing.set_start_method("fork", force=True)
    random.seed()
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    status = 1
    try:
        _forget_torch()
        sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
        _run(list(itertools.dropwhile(lambda word: word in ("-u", "-B"), start["argv"][1:])))
        status = 0
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        else:
            status = int(left.code or 0)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(words: list[str]) -> None:
    if words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv, sys.path[:0] = words[1:], [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = words, [str(Path(words[0]).absolute().parent)]
        runpy.run_path(words[0], run_name="__main__")


def _forget_torch() -> None:
    """Let the next ``import torch`` look for it, and find the one that is there."""
    torch = sys.modules.pop("torch")

    class Loaded(importlib.machinery.SourceFileLoader):
        def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
            return torch

        def exec_module(self, module: Any) -> None:
            """Nothing: it was."""

    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
            spec = super().find_spec(fullname, path, target)
            if fullname == "torch":
                spec.loader = Loaded(spec.loader.name, spec.loader.path)
            return spec

    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
    importlib.machinery.PathFinder = Finder
