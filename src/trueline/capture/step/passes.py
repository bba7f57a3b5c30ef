"""The passes of a step: those of its own, and those in which the framework reduces.

A step's own are those whose gradients are in ``.grad`` when the optimizer updates.

A backward pass does not count where the gradients that it left in ``.grad`` are gone, or zero, when the next one
begins: that of a generator through its critic, one for a saliency map, the first one of SAM. Trueline looks at the
gradients and not at calls that clear them, since any code may do that. Of a closure that is called several times a step
(LBFGS) the first call counts, at the parameters with which the step began.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.adapters.base import Guard, reduces_itself, uncompiled
from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.model.untraced import Hook, in_backward, skipped
from trueline.capture.model.world import collectives_started
from trueline.capture.step.updates import Args, Kwargs, with_closure

MAX_HOOKED = 16
"""Tensors of a model's output that get a hook which notes a backward pass."""

LOOKED_AT = 4
"""Parameters of an optimizer whose gradients are checked: the last, which is next to the loss, and the smallest."""

SAMPLE = 2**14
"""Elements of a gradient that are checked, or one of its rows."""


@dataclass(eq=False)
class Pass:
    """A forward or backward pass. ``at`` is the index in the step of the backward pass that its gradients come from,
    or, before there is one, of the next; ``reached`` is whether a gradient came through the model's output, and
    ``hooked`` whether one could be seen to.
    """

    at: int
    reached: bool = False
    hooked: bool = False


@dataclass(frozen=True)
class CountedPasses:
    """The passes of a step that count: none before the backward pass of index ``first``, and none before one of
    ``candidates`` whose flag in ``zeroed`` (bool [C], on the device) is true. ``reached``: a gradient came through the
    output of some forward pass; ``hooked``: one could. ``at`` has by name the int64 index of each row that was taken.
    """

    first: int = 0
    candidates: tuple[int, ...] = ()
    zeroed: tuple[Tensor, ...] = ()
    reached: bool = False
    hooked: bool = False
    at: dict[str, NDArray[np.int64]] = field(default_factory=dict[str, NDArray[np.int64]])

    def counts(self, model_pass: Pass, *, backward: bool = False) -> bool:
        """True if a pass counts, as far as the host knows without reading from the device."""
        return model_pass.at >= self.first and (model_pass.reached or not (self.hooked if backward else self.reached))

    def take(self, name: str, rows: Sequence[tuple[Pass, Tensor]], *, backward: bool = False) -> dict[str, Tensor]:
        if not rows:
            return {}
        counting = [
            (model_pass.at, tensor) for model_pass, tensor in rows if self.counts(model_pass, backward=backward)
        ]
        if not counting:
            return {}
        if len(counting) == 1:  # as in most steps
            at, tensor = counting[0]
            self.at[name] = np.full(len(tensor), at)
            return {name: tensor}
        self.at[name] = np.repeat([at for at, _ in counting], [len(tensor) for _, tensor in counting])
        return {name: torch.cat([tensor for _, tensor in counting])}

    def result(self) -> dict[str, Tensor]:
        """The tensors that ``drop_zeroed`` needs on the host."""
        return {"zeroed": torch.stack(self.zeroed)} if self.zeroed else {}

    def drop_zeroed(self, host: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], int | None]:
        """The tensors on the host without those of passes whose gradients were zeroed, and the number of batches of the
        other passes; None without one.
        """
        zeroed = host["zeroed"].tolist() if "zeroed" in host else []
        first = max((number for number, zero in zip(self.candidates, zeroed, strict=False) if zero), default=self.first)
        batches = int((self.at.get("tokens", np.zeros(0)) >= first).sum()) or None
        if first == self.first:
            return host, batches
        indices = {name: at for name, at in self.at.items() if name in host and host[name].dim()}
        rows = {name: host[name][torch.from_numpy(at >= first)] for name, at in indices.items()}
        return {name: value for name, value in {**host, **rows}.items() if name not in rows or len(value)}, batches


class Contributions:
    """Follows the passes of one model. ``latest`` is its last forward pass in this step, None without;
    ``backward_pass`` is the backward pass that ``torch.autograd.backward`` was called for last, None where that cannot
    count; ``num_reached`` is how many of this step have come through the model, and ``num_forward`` how many forward
    passes there were in all. ``at_unused`` is called with the forward pass before, where one begins and no backward
    pass has since that.
    """

    def __init__(self) -> None:
        self.backward_pass: Pass | None = None
        self.num_forward = 0
        self.at_unused: weakref.WeakMethod[Callable[[Pass], None]] | None = None
        self._guard: Guard = contextlib.nullcontext
        self._trained = ObjectTable[Optimizer, tuple[Tensor, ...]]()
        self._params: Sequence[Tensor] = ()
        self._followed: Sequence[Tensor] = ()
        self._trains: Tensor | None = None
        self.begin(())

    def begin(self, params: Sequence[Tensor]) -> None:
        """A step begins, of a model that trains ``params``."""
        if params is not self._params:
            self._params = params
            self._trained.clear()
            self._followed = ()
            self._trains = None
        self.latest: Pass | None = None
        self._parts_called = set[int]()
        self._num_begun = self._calls = self.num_reached = 0
        self._under_way: Pass | None = None
        self._grads_left: list[tuple[Tensor, int]] = []
        self._zeroed: list[tuple[int, Tensor | None]] = []
        self._updated: tuple[Tensor, ...] = ()
        self._update_from: int | None = None
        self._reached = self._hooked = self._is_counted = False

    @property
    def is_over(self) -> bool:
        """True if a closure is evaluated again: no further pass counts."""
        return self._calls > 1

    def now(self) -> Pass:
        """The pass to which a batch, output or loss that arrives now belongs."""
        return self.latest or Pass(self._num_begun)

    def listen(self, guard: Guard) -> None:
        """Follow backward passes from now on; ``guard`` opens what runs while the user's code calls ``backward``."""
        self._guard = guard
        patches.backward.add(self._at_backward)
        patches.backward.add(self._after_backward, after=True)

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        patches.backward.remove(self._after_backward)

    # -- forward and backward passes -------------------------------------------------------------------------------

    def forward_begins(self) -> None:
        """A training forward pass begins, or a batch was passed by hand."""
        self.num_forward += 1
        latest, self.latest = self.latest, Pass(self._num_begun)
        if latest is None or latest.reached or latest.at < self._num_begun or self.at_unused is None:
            return
        at_unused = self.at_unused()
        if at_unused is not None:
            at_unused(latest)

    def part_begins(self, part: nn.Module) -> bool:
        """Whether a call of ``part`` begins a pass: the first since the last backward pass, or one of a part that was
        called since.
        """
        begins = self.latest is None or self.latest.at < self._num_begun or id(part) in self._parts_called
        if begins:
            self._parts_called.clear()
        self._parts_called.add(id(part))
        return begins

    def at_output(self, tensors: Sequence[Tensor]) -> None:
        """Hook these of an output to note when gradients come back, unless the model trains no parameters."""
        if self._calls > 1 or not self._trains_any():
            return
        model_pass = self.now()
        for tensor in tensors[:MAX_HOOKED]:
            tensor.register_hook(Hook(functools.partial(self._came_back, model_pass)))
            self._hooked = model_pass.hooked = True

    def _at_backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with self._guard("passes"):
            self.backward_pass = None
            if not in_backward():
                self._under_way = self.backward_pass = self._begin_backward(
                    args[3] if len(args) > 3 else kwargs.get("inputs")
                )

    def _begin_backward(self, inputs: Any) -> Pass | None:
        """The backward pass that begins, into ``inputs`` only if given; None where it cannot count."""
        if self._calls > 1 or (inputs is not None and not self._any_of(inputs)):
            return None
        if self._grads_left:
            self._note_zeroed()
            if self.is_over:
                return None
        self._num_begun += 1
        return Pass(self._num_begun - 1)

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        """Remember which gradients it has left in ``.grad``."""
        with self._guard("passes"):
            model_pass = self._under_way
            if model_pass is not None and not in_backward():
                self._under_way = None
                if model_pass.reached or not self._hooked:
                    self.num_reached += 1
                    self._grads_left = [
                        (param, id(param.grad)) for param in self._looked_at() if param.grad is not None
                    ]

    def _came_back(self, model_pass: Pass, gradient: Tensor) -> None:
        """Take a gradient, of the running backward pass or of ``torch.autograd.grad``, which a loss may use."""
        if self._under_way is not None:
            self._under_way.reached = True
            model_pass.at = self._under_way.at
        elif self.is_over or not torch.is_grad_enabled():
            return
        model_pass.reached = self._reached = True

    def _note_zeroed(self) -> None:
        """Note whether the gradients of the pass before are gone (known on the host) or zero (known on the device)."""
        grads = [param.grad for param, _ in self._grads_left if param.grad is not None]
        if grads:
            zero = _all_zero(grads)
            self._zeroed += [] if zero is None else [(self._num_begun, zero)]
            return
        self._grads_left = []
        if self._update_from is not None and self._num_begun > self._update_from and not self._is_counted:
            self._calls = 2  # of a closure whose calls are not seen
        else:
            self._zeroed.append((self._num_begun, None))

    # -- updates ---------------------------------------------------------------------------------------------------

    def begin_update(self, optimizer: Optimizer) -> None:
        """``optimizer`` is about to update what it holds, or to call its closure."""
        few = self._trained.get(optimizer)
        if few is None:
            param_ids = {id(param) for group in optimizer.param_groups for param in group["params"]}
            few = _few([param for param in self._params if id(param) in param_ids])
            self._trained.set(optimizer, few)
            self._followed = ()
        self._updated = few
        self._update_from = self._num_begun

    def counted(self) -> CountedPasses:
        """The passes of this step that count. All do where gradients are kept elsewhere, so that an empty ``.grad``
        means nothing: in an optimizer that holds copies, or where code puts another gradient there than backward did.
        """
        zeroed = self._zeroed
        if not zeroed:  # nearly always
            return CountedPasses(reached=self._reached, hooked=self._hooked)
        if not self._updated or any(p.grad is not None and id(p.grad) != was for p, was in self._grads_left):
            zeroed = []
        first = max((number for number, zero in zeroed if zero is None), default=0)
        candidates = {number: zero for number, zero in zeroed if zero is not None and number > first}
        return CountedPasses(first, tuple(candidates), tuple(candidates.values()), self._reached, self._hooked)

    def counting(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Arguments of an optimizer's ``step`` with a closure that counts its calls; None where that cannot be."""
        counted = with_closure(args, kwargs, self._counted)
        self._is_counted = self._is_counted or counted is not None
        return counted

    def _counted(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        @skipped
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return closure(*args, **kwargs)

        return evaluated

    def _looked_at(self) -> Sequence[Tensor]:
        """Parameters to check, of the optimizers that have updated this model: these do not clear any others."""
        if not self._followed:
            trained = [few for _, few in self._trained.items()] or [_few(self._params)]
            self._followed = tuple({id(param): param for few in trained for param in few}.values())
        return self._followed

    def _trains_any(self) -> bool:
        """True if the model trains a parameter; the one that was found last is asked first."""
        if self._trains is None or not self._trains.requires_grad:
            self._trains = next((param for param in self._params if param.requires_grad), None)
        return self._trains is not None

    def _any_of(self, inputs: Any) -> bool:
        param_ids = {id(param) for param in self._params}
        tensors = (inputs,) if isinstance(inputs, Tensor) else inputs
        if not isinstance(tensors, (list, tuple)):  # an iterator, which torch can use up only once
            return True
        return any(id(tensor) in param_ids for tensor in tensors)


def _few(params: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (*params[-1:], *sorted(params[:-1], key=Tensor.numel)[: LOOKED_AT - 1])


def _all_zero(gradients: Sequence[Tensor]) -> Tensor | None:
    """Bool []: whether all are, on the device; NaN is not. None where there is nothing to look at."""
    parts = [local(gradient.detach()) for gradient in gradients]
    parts = [part for part in parts if part.layout == torch.strided and part.numel() and part.device == parts[0].device]
    sampled = [part[:: -(-part.numel() // SAMPLE)] if part.dim() else part for part in parts]
    return torch.stack(torch._foreach_norm(sampled, float("inf"))).eq(0).all() if sampled else None


class ReducedPasses:
    """Counts the backward passes in which the framework reduces: all workers make these together, so that equal counts
    are one iteration, and another count after the same number of updates is an update that one left out or repeated.

    Where the user's own code reduces, among the ranks ``by_hand``, ``count`` stays 0, and its collectives are such a
    clock, but for what ranks send to each other alone.
    """

    def __init__(self, *, by_hand: Sequence[int] = ()) -> None:
        self.count = 0
        self._awaited = self._trains = False
        self._by_hand = by_hand
        self._before = collectives_started(by_hand) if by_hand else 0

    def clock(self) -> int | None:
        """Number of reduced backward passes, or collectives, that all workers have made together; None if unseen."""
        if self.count == 0 and self._by_hand:
            return max(collectives_started(self._by_hand) - self._before, 0) or None
        return self.count or None

    def at_forward(self, model: nn.Module, *, bypasses: bool = False) -> None:
        """A forward pass begins. FSDP2 gathers weights there, which all workers do together; DDP reduces only if a
        backward pass follows, which one rank's look at its model need not have, and not where the call ``bypasses`` it.
        """
        reduces = reduces_itself(model) and not bypasses
        self._awaited = reduces and isinstance(uncompiled(model), nn.parallel.DistributedDataParallel)
        self._trains = model.training
        self.count += reduces and not self._awaited

    def at_output(self, tensors: Sequence[Tensor]) -> None:
        """Count the backward pass that comes back through these of an output, once; where no gradient can, that of a
        model in training mode is taken for granted.
        """
        if not self._awaited:
            return
        self.count += self._trains and not tensors
        self._awaited = False
        uncounted = [1]

        def counted(gradient: Tensor) -> None:
            self.count += uncounted.pop() if uncounted else 0

        for tensor in tensors:
            tensor.register_hook(Hook(counted))
