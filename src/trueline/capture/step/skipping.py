"""Leaves out updates whose gradient shows, before the update, that it would do harm (``on_finding = "skip"``).

Before each update the ranks share two numbers, the squared norm of the gradient that the optimizer is about to use and
whether one of them cannot go on so, and all decide from these alike. This waits for the device and for the other ranks,
which nothing else of watching does, and so nothing of it exists where it was not asked for
(docs/decisions/0028-what-may-leave-out-an-update.md).

An update is left out by taking the gradients away from the optimizer while it is called: those of torch pass over a
parameter without a gradient, so that neither weights nor states nor their counts change, and whatever the script does
around the call is done. The gradients are there again afterwards.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.model.untraced import in_backward
from trueline.capture.model.world import world_size
from trueline.capture.step.exchange import REDUCING_S
from trueline.capture.step.working_parts import Watching
from trueline.schema.finding import PLAN_REFUSED, UPDATE_SKIPPED, Finding
from trueline.schema.roles import Guard
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.words import counted, ranks_text

_log = SafeLogger()

PART = "leaving out updates"

_OWN_STEP = {
    "deepspeed": "DeepSpeed updates by an optimizer of its own, whose loss scale and shards would not know of it",
    "megatron": "Megatron updates by an optimizer of its own, whose loss scale and shards would not know of it",
    "fsdp1": "FSDP 1 keeps gradients in flat parts of which it expects that each is used",
    "sharded": "ranks that hold parts of one model do not compare what they hold, and would not decide alike",
}
"""Why nothing is left out, by the adapter."""
_CLOSURE = "the optimizer computes gradients in a closure, while it updates"
_IN_BACKWARD = "updates are made within the backward pass, before the whole gradient is known"
_SCALER = (
    "a GradScaler leaves out updates itself, on a rank whose gradients are not finite, and ranks would wait for each "
    "other"
)
_COPIES = "the optimizer updates copies of the parameters, whose gradients are not those of the model"
_COMPILED = "updates run inside of what torch.compile made, where they cannot be left out"
_UPDATES_ANYWAY = "the optimizer changed parameters that had no gradient"
_ALONE = "another rank cannot leave out updates"
_LATE = f"another rank did not come to the update within {REDUCING_S:.0f} seconds"


class Skipping:
    """Decides before each update of one watched model whether it is made. ``num_skipped`` were not."""

    def __init__(self, watching: Watching, guard: Guard) -> None:
        self._watching, self._guard = watching, guard
        self._team, self._parts = watching.team, watching.parts
        assert watching.plan.most_skips is not None
        self._left = watching.plan.most_skips
        self.num_skipped = 0
        self._is_on = True
        self._passes = 0
        self._squared: Tensor | None = None
        self._taken: dict[int, list[tuple[Tensor, Tensor, int]]] = {}
        self._leaves_out = False
        self._first: Optimizer | None = None
        self._shards = watching.adapter.name == "fsdp2"
        patches.scaler_step.add(self._at_scaler)
        for clip in patches.clips:
            clip.add(self._at_clip)
        if why := self._why_never():
            self._refuse(why)

    def detach(self) -> None:
        """Ask no more."""
        self._is_on = False
        patches.scaler_step.remove(self._at_scaler)
        for clip in patches.clips:
            clip.remove(self._at_clip)

    def at_forward(self) -> None:
        """A training forward pass begins: what was measured is of a gradient that more is added to."""
        self._passes += 1
        self._squared, self._leaves_out = None, False

    def at_update(self, optimizer: Optimizer, *, step: int, has_closure: bool) -> bool:
        """True if the update that ``optimizer`` is about to make, the first of this step, is left out."""
        if not self._is_on:
            return False
        with self._parts.guarded(PART):
            why = self._why_not_now(optimizer, has_closure=has_closure)
            reason = self._decide(optimizer, why)
            self._passes, self._squared = 0, None
            self._leaves_out = bool(reason)
            if reason:
                self._first = optimizer
                self._left -= 1
                self.num_skipped += 1
                self._take_gradients(optimizer)
                self._tell(reason, step)
            if self._is_on and not self._left:
                self._end(
                    f"all {self.num_skipped} that `most_skips` allows were left out; updates are made from now on"
                )
        if not self._parts.works(PART):
            self.detach()
        return self._leaves_out

    def at_further_update(self, optimizer: Optimizer) -> None:
        """A further optimizer of the step updates, or the same one within its own ``step``."""
        if self._leaves_out:
            with self._parts.guarded(PART):
                self._take_gradients(optimizer)

    def updated(self, optimizer: Optimizer, *, ended: bool) -> bool:
        """True if the call of ``optimizer`` that has returned was one of an update that was left out; ``ended`` is
        whether it was the outermost of the first one of the step.
        """
        if id(optimizer) not in self._taken:
            return False
        if ended or optimizer is not self._first:  # else the optimizer's own step goes on
            self._give_back(optimizer)
        return True

    def refuse_compiled(self) -> None:
        """An update was made where no hook is called."""
        if self._is_on:
            self._refuse(_COMPILED)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _why_never(self) -> str:
        if why := _OWN_STEP.get(self._watching.adapter.name):
            return why
        return "" if self._team.size == world_size() else "not all ranks of the job are watched together"

    def _why_not_now(self, optimizer: Optimizer, *, has_closure: bool) -> str:
        if has_closure:
            return _CLOSURE
        if in_backward():
            return _IN_BACKWARD
        own = {id(param) for param in self._watching.model.parameters()}
        return "" if any(id(param) in own for param in _params(optimizer)) else _COPIES

    def _decide(self, optimizer: Optimizer, why: str) -> str:
        """Why the update is left out, '' where it is made: the same on all ranks. ``why`` this one cannot go on."""
        squared = math.nan if why else self._measured()
        votes = self._shared(squared, bool(why))
        if votes is None:
            self._refuse(_LATE)
            return ""
        if votes[:, 1].any():
            self._refuse(why or _ALONE)
            return ""
        squares = votes[:, 0]
        ranks = [rank for rank, x in zip(self._team.ranks, squares.tolist(), strict=True) if not math.isfinite(x)]
        if ranks:
            return "the norm of the gradient was not finite" + (
                "" if len(ranks) == len(squares) else f" on {ranks_text(ranks)}"
            )
        # of ranks with the same gradient the root mean square of their norms is its norm
        norm = math.sqrt(float(squares.sum() if self._shards else squares.mean()))
        rate = max((float(group.get("lr", 0.0)) for group in optimizer.param_groups), default=0.0)
        return self._guard.why_not(norm, rate=rate, passes=self._passes)

    def _measured(self) -> float:
        """The squared norm of the gradient; this waits for the device."""
        if self._squared is None:
            self._squared = _squared_norm(self._watching.model)
        return float(self._squared)

    def _shared(self, squared: float, cannot: bool) -> Tensor | None:
        """[N, 2] the numbers of all ranks; None where one did not come."""
        votes = torch.zeros(self._team.size, 2, dtype=torch.float64)
        votes[self._team.index] = torch.tensor([squared, float(cannot)], dtype=torch.float64)
        group = self._team.votes
        if group is None:
            return votes if self._team.size == 1 else None
        # all but one number of each place are zero, but NaN and infinity add up to what they are
        work = group.allreduce([votes])
        try:
            done = work.wait(datetime.timedelta(seconds=REDUCING_S))
        except RuntimeError as error:
            _log.debug("an update was not agreed on: %s", error)
            return None
        return votes if done else None

    def _at_clip(self, *args: Any, **kwargs: Any) -> None:
        """Gradients are about to be clipped, after which their norm says nothing."""
        if self._is_on and self._squared is None and not in_backward():
            with self._parts.guarded(PART):
                self._squared = _squared_norm(self._watching.model)

    def _at_scaler(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_on and scaler.is_enabled():
            self._refuse(_SCALER)

    # -- leaving out -----------------------------------------------------------------------------------------------

    def _take_gradients(self, optimizer: Optimizer) -> None:
        taken = [(param, param.grad, param._version) for param in _params(optimizer) if param.grad is not None]
        for param, _, _ in taken:
            param.grad = None
        self._taken[id(optimizer)] = [*self._taken.get(id(optimizer), ()), *taken]

    def _give_back(self, optimizer: Optimizer) -> None:
        changed = False
        for param, gradient, version in self._taken.pop(id(optimizer)):
            changed |= param._version != version
            if param.grad is None:
                param.grad = gradient
        if changed and self._is_on:
            self._refuse(_UPDATES_ANYWAY)

    def _tell(self, reason: str, step: int) -> None:
        if self._team.index:
            return
        whose = " on all ranks" if self._team.size > 1 else ""
        claim = f"The update that would have been step {step} was left out{whose}: {reason}."
        _log.warning("trueline: %s %s may be left out.", claim, counted(self._left, "further update"))
        self._watching.safe_sink.write(
            Finding(
                code=UPDATE_SKIPPED,
                severity="warning",
                claim=claim,
                ranks=self._team.ranks,
                step_first=step,
                step_last=step,
                unit="updates",
                evidence={"number": self.num_skipped},
                next=("Look at the samples that were read for it, which no later step has.",),
            )
        )

    def _refuse(self, why: str) -> None:
        self._end(f"no update is left out: {why}")

    def _end(self, why: str) -> None:
        self.detach()
        if self._team.index:
            return
        claim = f'`on_finding = "skip"`: {why}.'
        _log.warning("trueline: %s", claim)
        self._watching.safe_sink.write(Finding(code=PLAN_REFUSED, severity="info", claim=claim, ranks=self._team.ranks))


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _squared_norm(model: nn.Module) -> Tensor:
    """[] float64: the squared L2 norm of what this rank has of the gradient; of a parameter in float32 at least."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for param in model.parameters():
        if param.grad is not None:
            part = local(param.grad.detach())
            part = part.coalesce().values() if part.is_sparse else part
            if part.numel():
                by_kind.setdefault((part.device, part.dtype), []).append(part)
    total = torch.zeros((), dtype=torch.float64)
    for (_, dtype), parts in by_kind.items():
        narrow = dtype in (torch.float16, torch.bfloat16)  # whose own range ends at 65,504, or is coarse
        norms = torch._foreach_norm(parts, 2, dtype=torch.float32 if narrow else None)
        total += torch.stack(norms).double().square().sum().cpu()
    return total
