"""Recording that begins when torch is imported: what a script computes before the forward pass that shows its model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn

from trueline.capture.model.world import launched_rank
from trueline.capture.record.session import Session
from trueline.schema.plan import Plan
from trueline.schema.roles import Record

_sessions: list[Session] = []
"""The one of this process, until it is taken."""


def begin_early(plan: Plan) -> None:
    """Record calls from now on, by ``plan``, for the first model that is watched."""
    if _sessions or plan.steps[0] > 0 or not plan.bits_alone or not plan.records_on(launched_rank()):
        return
    unwritten: list[Record] = []  # a step is written when it ends, and by then the session is taken
    session = Session(nn.Module(), plan=plan, write=unwritten.append, failed=_passed_over)
    session.begin_early()
    _sessions.append(session)


def pause_early() -> Callable[[], None]:
    """Let nothing of Trueline's own be recorded; returns what ends that."""
    if not _sessions:
        return _nothing
    (session,) = _sessions
    session.pause()
    return session.resume


def taken(model: nn.Module, **arguments: Any) -> Session | None:
    """The session that records already, which goes on with ``model``; None where there is none."""
    if not _sessions:
        return None
    session = _sessions.pop()
    session.take(model, **arguments)
    return session


def end_early() -> None:
    """Record nothing more, where it was for no model."""
    while _sessions:
        _sessions.pop().abandon()


def _passed_over(error: Exception) -> None:
    """Whoever takes the session is told."""


def _nothing() -> None:
    """There is nothing to resume."""


os.register_at_fork(after_in_child=end_early)
