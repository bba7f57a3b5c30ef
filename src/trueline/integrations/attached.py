"""Watching that begins by itself, as under ``trueline run``, and that a framework's callback ends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import trueline
from trueline.capture.child_env import RUN
from trueline.capture.launch import Attachment
from trueline.schema.live import Callback
from trueline.schema.plan import OnFinding, Plan
from trueline.sinks.registry import require_sinks


class Attached:
    """Waits for training in this process, watches it and writes a Run to ``out``; arguments as of ``trueline.watch``.

    To be made before the model is wrapped. Under ``trueline run``, which watches already, it does nothing. Raises
    ``PlanError``, or ``InputError`` for a sink that cannot be had.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        plan: Any = None,
        overwrite: bool = False,
        resume: bool = False,
        sinks: Sequence[str | Callback] = (),
        on_finding: OnFinding | None = None,
    ) -> None:
        plan_asked = Plan.load(plan)
        require_sinks([sink for sink in (*plan_asked.sinks, *sinks) if isinstance(sink, str)])
        self._arguments: dict[str, Any] = {
            "out": os.path.abspath(out),
            "plan": plan_asked.model_dump(mode="json"),
            "overwrite": overwrite,
            "resume": resume,
        }
        self._attachment: Attachment | None = None
        if not os.environ.get(RUN):
            start = partial(trueline.watch, sinks=sinks, on_finding=on_finding)
            self._attachment = Attachment(start, arguments=lambda: dict(self._arguments))
            self._attachment.wait()
            trueline.rl.follow_trl()

    def begins(self, optimizers: Iterable[Any] = (), *, step: int = 0, trains: Sequence[Any] = ()) -> None:
        """Training is about to begin with these ``optimizers``, which may have been made long ago, at this ``step``:
        not 0 where it goes on from a checkpoint, and so with its Run. ``trains`` are the parameters where optimizers
        hold copies.
        """
        if self._attachment is None:
            return
        if step:
            self._arguments |= {"step": step, "resume": True, "overwrite": False}
        for optimizer in optimizers:
            self._attachment.know(optimizer, trains=trains)

    def ends(self) -> None:
        """Training has ended: close the Run, and report what was found."""
        if self._attachment is not None:
            for watch in self._attachment.watches:
                watch.close()
