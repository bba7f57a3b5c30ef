"""Follow the updates of all optimizers of the process through one step: which parameters they hold, and by which
gradients.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model import patches
from trueline.capture.model.contents import attributes
from trueline.capture.model.layout import Layout
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import descent
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.optimizer.columns import MAX_NAMES, DecayGroup, Holdings, StepOf

MAX_NODES = 4096
"""Operations below a loss that are gone through for the parameters that it reaches."""
FIRST, FACTOR = 2, 8
"""Age of the first step that is followed, when all parts of a job are there, and how many times as old the next is."""


@dataclass
class _Followed:
    """The updates of one step, and of the next. ``gradients`` has by parameter its gradient, how often that was written
    to, after how many backward passes, and identity and class of the optimizer that used it last. ``uncleared`` has
    those that nobody but backward passes has written to since, how often, and whether one has; ``kept`` are the names
    of such parameters that the next update uses, and ``again`` the optimizers that have come to it. ``leaves`` are the
    parameters that backward passes since the last update have reached, those next to the loss first; ``foreign`` has as
    ``uncleared`` gradients that such a pass left on its way to what another optimizer has updated, and ``crossed`` the
    names of those that were used with more added.
    """

    step: int
    layout: Layout
    optimizers: dict[int, weakref.ref[Optimizer]] = field(default_factory=dict[int, "weakref.ref[Optimizer]"])
    gradients: dict[int, tuple[weakref.ref[Tensor], int, int, int, str]] = field(
        default_factory=dict[int, "tuple[weakref.ref[Tensor], int, int, int, str]"]
    )
    uncleared: dict[int, tuple[weakref.ref[Tensor], int, bool]] = field(
        default_factory=dict[int, "tuple[weakref.ref[Tensor], int, bool]"]
    )
    shared: dict[str, None] = field(default_factory=dict[str, None])
    kept: dict[str, None] = field(default_factory=dict[str, None])
    again: set[int] = field(default_factory=set[int])
    leaves: list[int] = field(default_factory=list[int])
    foreign: dict[int, tuple[weakref.ref[Tensor], int, bool]] = field(
        default_factory=dict[int, "tuple[weakref.ref[Tensor], int, bool]"]
    )
    crossed: dict[str, None] = field(default_factory=dict[str, None])
    by: dict[str, None] = field(default_factory=dict[str, None])
    num_backward: int = 0
    depth: int = 0

    @property
    def first(self) -> Optimizer | None:
        """The optimizer whose next update is that of the next step."""
        return next((optimizer for ref in self.optimizers.values() if (optimizer := ref()) is not None), None)


class HoldingProbe:
    """The column ``holdings``, at the first sampled step after one that was followed."""

    name = "holdings"
    moments = ("update",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard = parts.model, parts.guard
        self._next_age = FIRST
        self._followed: _Followed | None = None
        self._several = False
        self._switch = patches.Switch()
        patches.update_begins.add(self._at_update, switch=self._switch)
        patches.update_ended.add(self._after_update, switch=self._switch)
        patches.backward.add(self._at_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)

    def begin(self, step: Step) -> bool:
        return step.watched and step.sampled and (self._followed is not None or step.age >= self._next_age)

    def detach(self) -> None:
        self._switch.set(False)
        patches.update_begins.remove(self._at_update)
        patches.update_ended.remove(self._after_update)
        patches.backward.remove(self._at_backward)
        patches.backward.remove(self._after_backward)
        self._followed = None

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``holdings`` of the step that was followed; or this one is from here on."""
        followed = self._followed
        # The first of several optimizers has begun its next update, the others have not.
        if followed is not None and len(followed.optimizers) > 1 and step.number == followed.step + 1:
            return {}
        self._followed = None
        if followed is not None:
            self._switch.set(False)
            return {"holdings": self._holdings(followed).to_json()} if followed.optimizers else {}
        self._next_age = FACTOR * max(step.age, 1)
        self._followed = _Followed(step.number, step.layout)
        if step.optimizer is not None:  # it has begun
            self._note(step.optimizer)
            self._followed.depth = 1
        self._switch.set(True)
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        followed = self._followed
        if followed is None or in_backward():
            return
        followed.num_backward += 1
        with self._guard(self.name):
            for gradients in (followed.uncleared, followed.foreign):
                for index, (ref, writes, _) in [*gradients.items()]:
                    if _writes(followed.layout.params[index], ref) != writes:
                        del gradients[index]
            if self._several:
                followed.leaves += _leaves(descent.roots_of(tensors))

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        followed = self._followed
        if followed is None or in_backward():
            return
        with self._guard(self.name):
            for gradients in (followed.uncleared, followed.foreign):
                for index, (ref, writes, added) in gradients.items():
                    now = _writes(followed.layout.params[index], ref)
                    gradients[index] = ref, now, added or now > writes

    def _at_update(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        followed = self._followed
        if followed is None:
            return
        followed.depth += 1
        # A wrapper's update is that of what it wraps.
        if followed.depth > 1:
            return
        with self._guard(self.name):
            self._note_crossed(optimizer)
            if id(optimizer) in followed.optimizers and (followed.again or optimizer is followed.first):
                self._note_kept(optimizer)
                self._note(optimizer, first=False)
            elif not followed.again:
                self._note(optimizer)
            if len(followed.again) == len(followed.optimizers):
                self._switch.set(False)

    def _after_update(self, *args: Any, **kwargs: Any) -> None:
        if self._followed is not None:
            self._followed.depth = max(self._followed.depth - 1, 0)

    def _note(self, optimizer: Optimizer, *, first: bool = True) -> None:
        """The gradients that ``optimizer`` is about to use, for the ``first`` time or once more."""
        followed = self._followed
        if followed is None:
            return
        # states may be twice as large as the model: what the job lets go of is not kept until the next look
        followed.optimizers.setdefault(id(optimizer), weakref.ref(optimizer))
        kind = type(optimizer).__name__
        index_of, names = followed.layout.index_of, followed.layout.names
        for group in optimizer.param_groups:
            for param in group["params"]:
                index, grad = index_of.get(id(param)), param.grad
                if index is None or grad is None:
                    continue
                last = followed.gradients.get(index)
                now = (grad._version, followed.num_backward)
                if last is not None and last[0]() is grad and last[1:3] == now and last[3] != id(optimizer):
                    followed.shared[names[index]] = None
                    followed.by |= {last[4]: None, kind: None}
                followed.gradients[index] = weakref.ref(grad), *now, id(optimizer), kind
                if first and len(followed.uncleared) < MAX_NAMES:
                    followed.uncleared[index] = weakref.ref(grad), grad._version, False

    def _note_kept(self, optimizer: Optimizer) -> None:
        """Of the gradients that ``optimizer`` is about to use once more, those that were not cleared."""
        followed = self._followed
        if followed is None:
            return
        followed.again.add(id(optimizer))
        held = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for index, (ref, writes, added) in followed.uncleared.items():
            param = followed.layout.params[index]
            if added and id(param) in held and _writes(param, ref) == writes:
                followed.kept[followed.layout.names[index]] = None

    def _note_crossed(self, optimizer: Optimizer) -> None:
        """Gradients of others that lie on the way from the loss to what ``optimizer`` is about to update, and of its
        own what was left on such a way before.
        """
        followed = self._followed
        if followed is None:
            return
        self._several = self._several or bool(followed.optimizers.keys() - {id(optimizer)})
        held = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for index, (ref, writes, added) in [*followed.foreign.items()]:
            param = followed.layout.params[index]
            if id(param) in held:
                if added and _writes(param, ref) == writes:
                    followed.crossed[followed.layout.names[index]] = None
                del followed.foreign[index]
        leaves, followed.leaves = followed.leaves, []
        # Next to the loss of tasks that share a part stand their heads; a loss through a critic begins at the critic.
        if not leaves or leaves[0] in held or held.isdisjoint(leaves):
            return
        index_of = followed.layout.index_of
        for leaf in leaves:
            index = None if leaf in held else index_of.get(leaf)
            grad = None if index is None else followed.layout.params[index].grad
            if index is not None and grad is not None and len(followed.foreign) < MAX_NAMES:
                followed.foreign[index] = weakref.ref(grad), grad._version, False

    def _holdings(self, followed: _Followed) -> Holdings:
        norms = _norm_weights(self._model)
        shared = list(followed.shared)
        return Holdings(
            step=followed.step,
            updates=tuple(
                _update_of(optimizer, followed.layout, norms)
                for ref in followed.optimizers.values()
                if (optimizer := ref()) is not None
            ),
            shared=tuple(shared[:MAX_NAMES]),
            num_shared=len(shared),
            by=tuple(followed.by),
            # Of one optimizer the probe of kept gradients tells.
            kept=tuple(followed.kept) if len(followed.optimizers) > 1 else (),
            crossed=tuple(followed.crossed),
        )


def _leaves(roots: Sequence[Tensor]) -> list[int]:
    """Identities of parameters below ``roots``, breadth first."""
    pending = deque(root.grad_fn for root in roots)
    visited, leaves = set[Any](), list[int]()
    while pending and len(visited) < MAX_NODES:
        node = pending.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.append(id(node.variable))
        pending.extend(parent for parent, _ in node.next_functions)
    return leaves


def _writes(param: Tensor, grad: weakref.ref[Tensor]) -> int:
    """How often the gradient was written to; -1 where the parameter has another one, or none."""
    return param.grad._version if param.grad is not None and param.grad is grad() else -1


def _norm_weights(model: nn.Module) -> set[int]:
    """Identities of vectors that are the weights of modules which normalise, by the names of their classes."""
    return {
        id(param)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for name, param in module._parameters.items()
        if param is not None and name != "bias" and param.dim() == 1
    }


def _update_of(optimizer: Optimizer, layout: Layout, norms: set[int]) -> StepOf:
    default = attributes(optimizer).get("defaults", {}).get("weight_decay")
    return StepOf(
        type(optimizer).__name__,
        float(default) if isinstance(default, (int, float)) else None,
        tuple(_group_of(group, layout, norms) for group in optimizer.param_groups),
    )


def _group_of(group: Mapping[str, Any], layout: Layout, norms: set[int]) -> DecayGroup:
    decay = group.get("weight_decay", 0.0)
    params: list[torch.Tensor] = group["params"]
    names = [layout.names[layout.index_of[id(p)]] for p in params if id(p) in norms and id(p) in layout.index_of]
    return DecayGroup(
        decay=float(decay) if isinstance(decay, (int, float)) else 0.0,
        num=len(params),
        norms=tuple(names[:MAX_NAMES]),
        num_vectors=sum(param.dim() <= 1 for param in params) - len(names),
    )


def make_probe(parts: ProbeParts) -> HoldingProbe:
    """The probe of this law for one watched model."""
    return HoldingProbe(parts)
