"""Runs a command in the foreground: output, signals and exit status are those of the command."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_PASSED_ON = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGWINCH),
)

_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
"""Signals that are sent to a job that is to end."""

_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


@dataclass(frozen=True)
class Ended:
    """The ``status`` that ``os.waitpid`` gave of a command, and the last signal to end that came before, 0 for none."""

    status: int
    passed_on: int = 0


@contextmanager
def threads_without_signals() -> Iterator[None]:
    """Threads that libraries start meanwhile never take a signal that ``run_in_foreground`` passes on: the kernel gives
    one that the main thread has not asked for yet to any thread that does not block it, where it ends the process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_foreground(program: str, words: Sequence[str], environ: Mapping[str, str]) -> Ended:
    """Start ``program`` with the arguments ``words`` and wait for its end, which is returned.

    Signals that reach this process meanwhile are passed on, but for those that a terminal sends to the command as
    well. SIGSTOP cannot be passed on, nor can SIGKILL: there the kernel ends ``program``, where it is Linux. Raises
    ``OSError`` where it cannot be started.
    """
    end_with_parent = _ender()
    awaited = {*_PASSED_ON, signal.SIGCHLD}
    before, passed_on = signal.pthread_sigmask(signal.SIG_BLOCK, awaited), 0
    try:
        pid = _spawn(
            program, words, environ, lambda: (end_with_parent(), signal.pthread_sigmask(signal.SIG_SETMASK, before))
        )
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return Ended(status, passed_on)
            number, by_terminal = _next_signal(awaited)
            passed_on = number if number in _ENDING else passed_on
            if number != signal.SIGCHLD and not by_terminal:
                os.kill(pid, number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(program: str, words: Sequence[str], environ: Mapping[str, str], before: Callable[[], object]) -> int:
    """The id of the new process, which ``before`` runs in first. It inherits what it would by ``exec``."""
    # Not waited for by subprocess: run_in_foreground reads the status itself.
    process = subprocess.Popen(
        words,
        executable=program,
        env=environ,
        close_fds=False,
        restore_signals=False,
        preexec_fn=before,
    )
    process.returncode = 0
    return process.pid


def _ender() -> Callable[[], object]:
    """A function that makes the kernel send SIGKILL to the process that calls it when the parent of that is gone."""
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_as(status: int) -> None:
    """End this process the way another ended that left ``status``: with its exit code, or by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The command has written its own core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


def _next_signal(awaited: set[signal.Signals]) -> tuple[int, bool]:
    """Wait for one of these, which are blocked; its number, and whether a terminal sent it to the whole group."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(awaited)
        return info.si_signo, info.si_code > 0  # sigaction(2): positive where the kernel sent it
    number = signal.sigwait(awaited)  # macOS does not tell who sent it
    return number, number in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
