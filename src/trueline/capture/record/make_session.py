"""Starts a session of recording where the Plan asks for one; nothing of it is imported where it does not."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.model.world import world_size
from trueline.capture.record.hooks import eager_modules
from trueline.schema.errors import PlanError
from trueline.schema.plan import Plan
from trueline.schema.roles import Record

if TYPE_CHECKING:
    from trueline.capture.record.session import Session


def require_fitting(model: nn.Module, plan: Plan) -> None:
    """Raise ``PlanError`` where the plan names ranks, modules or parameters that this job does not have."""
    _require_ranks(plan)
    _require_sites(model, plan)


def _require_sites(model: nn.Module, plan: Plan) -> None:
    """Raise ``PlanError`` where modules are to be recorded and no module or parameter has a name that is asked for.

    Names of calls are not known before they are made: the session reports these after its first step.
    """
    if plan.preset != "modules":
        return
    compiled: list[str] = []
    names = list(dict.fromkeys([*(name for name, _ in eager_modules(model, compiled)), *compiled]))
    names += [clean_name(name) for name, _ in unwrap(model).named_parameters()]
    for key, globs in (("names", plan.names), *(("between", (glob,)) for glob in plan.between or ())):
        if not any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs):
            raise PlanError(
                f"{key}={list(globs)} matches none of the {len(names)} modules and parameters of "
                f"{type(unwrap(model)).__name__}; the first are {', '.join(names[:5])}."
            )


def _require_ranks(plan: Plan) -> None:
    """Raise ``PlanError`` where the plan names a rank that does not exist."""
    world = world_size()
    ranks_by_key = {
        "worker_groups": [rank for group in plan.worker_groups for rank in group],
        "ranks": plan.ranks or (),
    }
    for key, ranks in ranks_by_key.items():
        unknown = sorted(rank for rank in ranks if not 0 <= rank < world)
        if unknown:
            raise PlanError(
                f"The plan's {key} name rank {unknown[0]}, but the ranks of this job are 0 to {world - 1}. "
                "Name ranks that there are."
            )


AnySession: TypeAlias = "Session | Idle"


class Idle:
    """Stands for a Session where nothing is to be recorded."""

    def pause(self) -> None:
        """Nothing."""

    resume = close_step = abandon = pause

    def open_step(self, step: int, *, sampled: bool = True) -> None:
        """Nothing."""

    def begin_update(self, optimizer: Optimizer | None = None, *, gradients_ready: bool = True) -> None:
        """Nothing."""

    def detach(self, *, raised: bool = False) -> None:
        """Nothing."""

    def save(self, name: str, value: Tensor) -> None:
        """Nothing."""


def make_session(
    model: nn.Module,
    *,
    plan: Plan | None,
    write: Callable[[Record], None],
    failed: Callable[[Exception], None],
    notes: list[str],
    spend: Callable[[float], None] = lambda _: None,
) -> AnySession:
    """A Session, or where there is no Plan by which this rank records, one that does nothing."""
    if plan is None:
        return Idle()
    from trueline.capture.record.session import Session

    if plan.bits_alone:
        from trueline.capture.record.early import taken

        early = taken(model, write=write, failed=failed, notes=notes, spend=spend)
        if early is not None:
            return early
    return Session(model, plan=plan, write=write, failed=failed, notes=notes, spend=spend)
