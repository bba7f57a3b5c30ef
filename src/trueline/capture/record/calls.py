"""The calls of a step. A call that is made again at the next step is the same object: nothing of it is made anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trueline.capture.record.modules import in_backward

MAX_CALLS = 65_536
"""Calls that are remembered before all are forgotten: a step has thousands, and a job may never repeat one."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module or operator; its rows share all that is said here."""

    micro: int
    phase: str
    name: str
    index: int
    kind: str
    api: str = ""
    module: str = ""
    stack: int | None = None
    flags: str = ""
    args: str | None = None
    """Those of this step, taken by the first of its rows."""


class Calls:
    """Counts the calls of one step by name. ``micro`` is the micro-batch that runs, -1 before the first."""

    def __init__(self) -> None:
        self.micro = -1
        self._known: dict[tuple[Any, ...], Call] = {}
        self._counts: dict[str, int] = {}

    def begin(self) -> None:
        """A step begins: nothing was called yet."""
        self.micro = -1
        self._counts.clear()
        if len(self._known) > MAX_CALLS:
            self._known.clear()

    def next(
        self,
        phase: str,
        name: str,
        kind: str,
        api: str = "",
        module: str = "",
        stack: int | None = None,
        flag: str = "",
    ) -> Call:
        """The next call of ``name``, with the flags that are due now and ``flag`` behind them."""
        flags = "" if torch.is_grad_enabled() or phase not in ("fwd", "save") else "no_grad"
        if phase == "fwd" and in_backward():
            flags = "recomputed"
        micro = max(self.micro, 0)
        counted = f"{micro}/{phase}/{name}"  # a text, which Python's garbage collector need not look at
        index = self._counts.get(counted, 0)
        self._counts[counted] = index + 1
        flags = flagged(flags, flag)
        key = (counted, index, kind, api, module, stack, flags)
        call = self._known.get(key)
        if call is None:
            call = self._known[key] = Call(micro, phase, name, index, kind, api, module, stack, flags)
        return call


def flagged(flags: str, flag: str) -> str:
    """Column ``flags`` with one more; '' adds none."""
    return f"{flags},{flag}" if flags and flag else flags or flag
