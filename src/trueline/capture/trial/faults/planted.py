"""A fault on one rank, or on all, from one update on: what all kinds of them share.

What a fault touches is counted in a file that is written at once: one that touched nothing was not planted. A fault is
put around what watches, which so sees what it would see of a job that has the fault.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueline.capture.model import patches
from trueline.capture.model.layout import clean_name
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.model.world import is_initialised, launched_rank, world_size


class PlantedFault:
    """In place, and changes nothing. ``at`` is the update from which on a fault is there; ``rank`` None is the last
    rank. ``size`` is how large it is, where a kind has sizes.
    """

    end: int | None = None
    """The update at which a law must see it, where that is known."""

    def __init__(self, *, at: int, folder: str, rank: int | None = None, size: float = 1.0) -> None:
        self._at, self._folder, self._rank, self._size = at, Path(folder), rank, size
        self._num_updates = Counter[int]()
        self._num_touched, self._first_step, self._what = 0, -1, ""
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._names: dict[int, str] = {}

    def install(self) -> None:
        """Put it in place; called once torch is imported, before anything watches."""
        for call in (patches.backward, patches.scale):
            call.add(_nothing, keep=True)
        patches.Patch(torch.autograd, "backward", patches.calling(self._around_backward)).install()
        patches.module_call.add(self._before_call, keep=True)
        register_optimizer_step_pre_hook(Hook(self._before_update))
        register_optimizer_step_post_hook(Hook(self._count))

    # -- for the kinds ----------------------------------------------------------------------------------------------

    def at_call(self, module: nn.Module) -> None:
        """``module`` is about to run in training."""

    def of_loss(self, loss: Any) -> Any:
        """What backward is called on in place of ``loss``."""
        return loss

    def after_backward(self) -> None:
        """A backward pass of the job has ended, and what reduces in it."""

    def after_update(self, params: Sequence[Tensor]) -> None:
        """An optimizer has moved its ``params``, and nobody has looked yet."""

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return max(self._num_updates.values(), default=0)

    @property
    def bad_rank(self) -> int:
        """The rank that has the fault, where one has it."""
        return own_place()[1] - 1 if self._rank is None else self._rank

    @property
    def is_here(self) -> bool:
        """True on the rank that has the fault."""
        return own_place()[0] == self.bad_rank

    @property
    def has_begun(self) -> bool:
        """True from its first update on, on all ranks."""
        return self.step >= self._at

    @property
    def is_on(self) -> bool:
        """True from its first update on, on the rank that has it."""
        return self.has_begun and self.is_here

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that have made an update."""
        return [optimizer for ref in self._optimizers.values() if (optimizer := ref()) is not None]

    def name_of(self, param: Tensor) -> str:
        """Its name in the model that was called first."""
        return self._names.get(id(param), f"a parameter of {tuple(param.shape)}")

    def touch(self, what: str = "", times: int = 1) -> None:
        """Count what the fault has changed, and say in words ``what`` that was, the first time."""
        if times and not self._num_touched:
            self._first_step, self._what = self.step, what
        self._num_touched += times
        if times:
            self._write()

    # -- the job ----------------------------------------------------------------------------------------------------

    def _around_backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if in_backward():
            return original(tensors, *args, **kwargs)
        returned = original(self.of_loss(tensors), *args, **kwargs)
        with torch.no_grad():
            self.after_backward()
        return returned

    def _before_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not torch.is_grad_enabled() or in_backward():
            return
        if not self._names:
            self._names = {id(param): clean_name(name) for name, param in module.named_parameters()}
        self.at_call(module)

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            # hooks of an optimizer come before those of all, by which others look
            optimizer.register_step_post_hook(Hook(self._after_update))

    @torch.no_grad()
    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.after_update([param for group in optimizer.param_groups for param in group["params"]])

    def _count(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._num_updates[id(optimizer)] += 1
        if self.step == 1:
            self._write()

    def _write(self) -> None:
        rank, world = own_place()
        document = {"rank": rank, "world": world, "touched": self._num_touched}
        path = self._folder / f"planted-{rank}.json"
        text = json.dumps(document | {"step": self._first_step, "what": self._what, "end": self.end})
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        path.with_suffix(".part").replace(path)


def own_place() -> tuple[int, int]:
    """Own rank and number of ranks, also before they have met."""
    return launched_rank(), world_size() if is_initialised() else int(os.environ.get("WORLD_SIZE", "1"))


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Listen, so that what listens later is inside of what is put around it now."""
