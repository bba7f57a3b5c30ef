"""Sample elements around an update: what the optimizer declares, and values before and after it."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model.patches import unseen
from trueline.capture.model.untraced import Hook, skipped
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import (
    NUM_SLICES,
    UpdateSample,
    law_of,
    num_slices,
    sample_slices,
    sampled_copies,
)
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.updates import Args, Kwargs, closure_of, is_compiled, with_closure


class UpdateProbe:
    """Copies sampled elements just before and just after the optimizer's update, by hooks of the optimizer itself: they
    are called inside of all others, and also where a framework makes more of an update than that of its optimizer.
    """

    name = "updates"
    moments = ("update", "updated")
    between = None

    def __init__(self, guard: Guard, *, rank: int) -> None:
        self._guard = guard
        self._next_param = rank * NUM_SLICES  # replicas look at other parameters
        self._times = NowAndThen()
        self._handles: list[Any] = []
        self._waiting = Waiting[UpdateSample]()
        self._was_still = False
        self._layout_digest: int | None = None
        self._forget()

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, and in the next ones after an update that looks like none, or after
        other parameters came to be trained: an optimizer that was made before may lack these.
        """
        self._forget()
        if self._layout_digest not in (None, step.layout.digest):
            self._times.look_again()
        self._layout_digest = step.layout.digest
        return step.sampled and self._times.due(step)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        if moment == "update":
            self._listen(step)
            return {}
        sample, is_done = self._sample, self._is_done
        self._forget()
        if sample is None or not is_done:
            return {}
        self._waiting.add(step.number, sample)
        return sample.hand_over()

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        sample = self._waiting.take(step.number)
        if sample is None:
            return {}
        values = sample.values(host)
        still = sample.is_still(values)
        if still and not self._was_still:
            self._times.look_again()
        self._was_still = still
        return {"update_facts": json.dumps(sample.facts), "update_values": values}

    def _listen(self, step: Step) -> None:
        """Hook the update that is about to be made, once; not one that was compiled, which calls no hooks."""
        self._forget()  # of an update that raised, nothing has said that it ended
        optimizer = _inner_optimizer(step.optimizer)
        before = getattr(optimizer, "_optimizer_step_pre_hooks", None)
        after = getattr(optimizer, "_optimizer_step_post_hooks", None)
        if optimizer is None or before is None or after is None or _is_compiled(optimizer):
            return
        self._step = step
        self._handles = [
            _HookBehind(before, Hook(self._before)) if before else optimizer.register_step_pre_hook(Hook(self._before)),
            optimizer.register_step_post_hook(Hook(self._after)),
        ]
        after.move_to_end(next(reversed(after)), last=False)  # in front of the user's own, which may change parameters

    def _before(self, optimizer: torch.optim.Optimizer, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Take the elements; with a closure, which torch takes from what is returned, once that made the gradients."""
        self._depth += 1
        if self._depth > 1 or self._sample is not None:
            return None
        if closure_of(args, kwargs) is not None:
            return with_closure(args, kwargs, functools.partial(self._after_closure, optimizer))
        self._take(optimizer)
        return None

    def _after_closure(self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        @skipped
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            self._again = self._sample is not None  # an update of several evaluations obeys no law
            if self._depth == 1 and not self._again:
                self._take(optimizer)
            return loss

        return evaluated

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        with self._guard(self.name), torch.no_grad():
            step = self._step
            chance = random.Random(step.number)
            slices, self._next_param = sample_slices(
                optimizer, step.layout, first=self._next_param, num=num_slices(step.age), random=chance
            )
            copies = sampled_copies(optimizer, step.layout, random=chance)
            sample = UpdateSample(optimizer, step.layout, slices, copies=copies)
            sample.before()
            self._sample = sample

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth -= 1
        if self._depth or self._sample is None or self._is_done or self._again:
            return
        with self._guard(self.name), torch.no_grad():
            self._sample.after()
            self._is_done = True

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._sample: UpdateSample | None = None
        self._is_done = self._again = False
        self._depth = 0
        self._step: Any = None


class _HookBehind:
    """Stands for the last of the user's ``hooks`` before an update, until it is removed, and calls ours after it. Torch
    goes through them meanwhile: the last may take itself off, which it may not with one of ours behind it.
    """

    def __init__(self, hooks: dict[int, Any], hook: Hook) -> None:
        self._hooks, self._hook = hooks, hook
        self._key, self._users = [*hooks.items()][-1]
        self._joint_hook = self._make_joint_hook()
        hooks[self._key] = self._joint_hook  # in its place: the order of the keys stays as it is

    def remove(self) -> None:
        """Put the user's back, unless that has taken itself off."""
        if self._hooks.get(self._key) is self._joint_hook:
            self._hooks[self._key] = self._users

    def _make_joint_hook(self) -> Callable[..., Any]:
        users, hook = self._users, self._hook

        @skipped
        @unseen
        def call_both(optimizer: Any, args: Any, kwargs: Any) -> Any:
            changed = users(optimizer, args, kwargs)
            if isinstance(changed, tuple) and len(changed) == 2:
                args, kwargs = changed
            elif changed is not None:
                return changed  # at which torch raises
            return hook(optimizer, args, kwargs) or changed

        return call_both


def _inner_optimizer(optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
    """The optimizer inside of those that only wrap one (torch's ZeroRedundancyOptimizer, Lookahead), where its rule is
    known.
    """
    inner = optimizer
    while inner is not None and not law_of(inner):
        candidates = (getattr(inner, name, None) for name in ("optim", "optimizer"))
        inner = next((candidate for candidate in candidates if isinstance(candidate, torch.optim.Optimizer)), None)
    return optimizer if inner is None else inner


def _is_compiled(optimizer: torch.optim.Optimizer) -> bool:
    first = next((param for group in optimizer.param_groups for param in group["params"]), None)
    return first is not None and is_compiled(first, update=True)


def make_probe(parts: ProbeParts) -> UpdateProbe:
    """The probe of this law for one watched model."""
    return UpdateProbe(parts.guard, rank=parts.rank)
