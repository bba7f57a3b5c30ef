"""Lines of the script that call what trains: file and line of `backward`, `zero_grad`, `step` and others, each once.

The line is the innermost of the user's own: of no installed package, not torch's, not Python's. A kind of call whose
last ``PATIENCE`` calls came from known lines is not looked at any more, so that a step costs nothing for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from trueline.capture.model import patches
from trueline.capture.record.stacks import is_users_file

PATIENCE = 24
"""Calls from known lines after which a kind is let go: some accumulate over 16 micro-batches."""
MOST_LINES = 4
"""Lines of one kind that are told: more are a script in a notebook that is run again and again."""

KINDS: Mapping[str, Sequence[patches.PatchedCall]] = {
    "DataLoader": (patches.loader_init,),
    "DistributedSampler": (patches.sampler_init,),
    "optimizer": (patches.optimizer_init,),
    "zero_grad": patches.zero_grads,
    "backward": (patches.backward,),
    "clip_grad_norm_": patches.norms,
    "scheduler": patches.schedules,
    "eval": (patches.module_eval,),
}
"""Patched calls by kind. ``step`` is noted by whoever sees the update."""
KEPT_UP = frozenset({"DataLoader", "DistributedSampler", "optimizer", "eval"})
"""Called seldom, and perhaps late: these are listened to until the end."""


class CallSites:
    """Call sites of this process: ``lines`` has ``file:line`` by kind, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        self._patience = dict.fromkeys((*KINDS, "step"), PATIENCE)
        self._listeners: dict[str, Callable[..., None]] = {}
        self._is_users: dict[CodeType, bool] = {}

    def listen(self, *kinds: str) -> None:
        """Look at calls of these kinds from now on; those that are listened to already go on."""
        for kind in kinds:
            if kind not in self._listeners and self._patience[kind] > 0:
                self._listeners[kind] = self._listener(kind)
                for call in KINDS[kind]:
                    call.add(self._listeners[kind])

    def ignore(self, *kinds: str) -> None:
        """Stop looking at calls of these kinds."""
        for kind in kinds:
            listener = self._listeners.pop(kind, None)
            for call in KINDS[kind] if listener else ():
                call.remove(listener)

    def note(self, kind: str) -> None:
        """A call of this kind is on the stack of this thread."""
        if self._patience[kind] <= 0:
            return
        line = self._users_line(sys._getframe(1))
        lines = self.lines.get(kind, [])
        if line and line not in lines and len(lines) < MOST_LINES:
            self.lines = {**self.lines, kind: [*lines, line]}  # another object: what was sent before stays as it was
            self._patience[kind] = PATIENCE
        elif kind not in KEPT_UP:
            self._patience[kind] -= 1
            if self._patience[kind] == 0 and kind in KINDS:
                self.ignore(kind)

    def line_now(self) -> str:
        """``train.py:24`` of the innermost frame of the user's own on the stack of this thread; '' without one."""
        return self._users_line(sys._getframe(1))

    def _listener(self, kind: str) -> Callable[..., None]:
        def at_call(*args: Any, **kwargs: Any) -> None:
            self.note(kind)

        return at_call

    def _users_line(self, frame: FrameType | None) -> str:
        """``train.py:24`` of the innermost frame of the user's own; '' without one."""
        while frame is not None:
            code = frame.f_code
            users = self._is_users.get(code)
            if users is None:
                users = self._is_users[code] = is_users_file(code.co_filename)
            if users:
                return f"{_path_from_here(code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _path_from_here(file: str) -> str:
    """Path of ``file`` from where the job was started; in full where that folder is no more."""
    try:
        return file.removeprefix(os.getcwd() + os.sep)
    except OSError:
        return file


call_sites = CallSites()
"""One for the process, as its functions of torch are: lines are the same for all models that train in it."""
