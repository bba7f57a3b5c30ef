"""Look at two early steps for tensors of single samples that the step before left and that the loss depends on: hidden
states in attributes of the model, or outputs of the model that it is called with again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trueline.capture.model import patches
from trueline.capture.model.contents import attributes, elements, is_tensor
from trueline.capture.model.graph import MAX_NODES, is_hooked, nodes_below, saved_names
from trueline.capture.model.layout import clean_name, local, unwrap
from trueline.capture.probes.arguments import named_tensors
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.probes.losses.descent import roots_of
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.carried_state.columns import CarriedState, states_text

BEFORE = 3
"""Age of the step whose outputs are held to those that the two steps after it are called with: all is there by then."""
LAST = BEFORE + 2
MAX_TENSORS, MAX_STATES = 64, 8
"""Outputs that are remembered, and states that a row names."""

_REGISTERED = ("_parameters", "_buffers", "_modules")


class CarriedStateProbe:
    """The column ``carried_state``. Of tensors only the address of their memory is kept."""

    name = "state of the model"
    moments = ("batch", "output", "gradients")
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard, self._passes = parts.model, parts.guard, parts.contributions
        self._outputs: list[StorageWeakRef] = []
        self._looks = self._is_over = False
        self._states: dict[int, tuple[CarriedState, Tensor]] = {}
        self._reached = set[int]()
        self._switch = patches.Switch()
        patches.backward.add(self._at_backward, switch=self._switch)

    def begin(self, step: Step) -> bool:
        if self._is_over or step.age < BEFORE:
            return False
        if step.age > LAST:
            self._is_over = True
            self.detach()
            return False
        due = step.watched and step.sampled
        self._looks = due and step.age > BEFORE
        self._states, self._reached = {}, set()
        self._switch.set(self._looks)
        return due

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        self._looks, self._states, self._outputs = False, {}, []

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``carried_state``; empty where the step is computed from nothing that the one before left."""
        if moment == "batch":
            if self._looks and not self._states:
                self._seek(step)
        elif moment == "output":
            outputs = [local(x) for _, x in tensors_inside("", step.output)][:MAX_TENSORS]
            self._outputs = [StorageWeakRef(x.untyped_storage()) for x in outputs if _is_plain(x)]
        elif self._looks:
            states, self._states = self._states, {}
            self._switch.set(False)
            # What is still in its place was not made of this batch: a mask, a table of positions.
            now = {id(x) for _, x in _in_attributes(self._model)} if states else set[int]()
            carried = [
                state
                for address, (state, x) in states.items()
                if address in self._reached and (state.is_argument or id(x) not in now)
            ]
            return {"carried_state": states_text(carried[:MAX_STATES])}
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _seek(self, step: Step) -> None:
        """The tensors that may be what the step before left, each with a dimension of as many as there are samples."""
        model = self._model if step.module is None else step.module
        tensors = [(name, local(x)) for name, x in named_tensors(model, step.args, step.kwargs)]
        tensors = [(name, x) for name, x in tensors if _is_plain(x)]
        if not tensors:
            return
        # of a recurrent model the first dimension may be that of time
        rows = {int(size) for size in tensors[0][1].shape[:2]} - {1}
        addresses = {ref.cdata for ref in self._outputs if not ref.expired()}
        for name, x in tensors:
            address = _address(x)
            if x.is_floating_point() and x.grad_fn is None and rows & set(x.shape) and address in addresses:
                self._states[address] = CarriedState(name, tuple(x.shape), True), x
        for name, x in _in_attributes(self._model):
            if rows & set(x.shape):
                self._states.setdefault(_address(x), (CarriedState(name, tuple(x.shape), False), x))

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not self._looks or not self._states or self._passes.backward_pass is None:
            return
        with self._guard(self.name):
            self._reached |= _kept_by(roots_of(tensors), set(self._states))


def _in_attributes(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors of floating point without a gradient in attributes of the model's modules that register nothing, and in
    lists and tuples there.
    """
    for module_name, module in unwrap(model).named_modules():
        owner = clean_name(module_name) if module_name else ""
        for key, value in list(attributes(module).items()):
            if key in _REGISTERED or key.endswith("_hooks"):
                continue
            inside = [value] if is_tensor(value) else list(itertools.islice(elements(value), MAX_TENSORS))
            for x in inside:
                if is_tensor(x) and _is_plain(local(x)) and x.is_floating_point() and not x.requires_grad:
                    yield f"{owner}.{key}".lstrip("."), local(x)


def _kept_by(roots: list[Tensor], addresses: set[int]) -> set[int]:
    """Those of ``addresses`` of memory at which operations below ``roots`` keep something for backward."""
    reached = set[int]()
    for number, node in enumerate(nodes_below(roots)):
        if number >= MAX_NODES or reached == addresses:
            break
        for name in saved_names(type(node)):
            raw = getattr(node, f"_raw_saved_{name}")
            if any(is_hooked(x) for x in (raw if isinstance(raw, (tuple, list)) else (raw,)) if x is not None):
                continue
            try:
                saved = getattr(node, f"_saved_{name}")
            except RuntimeError:  # changed in place, or freed
                continue
            for x in saved if isinstance(saved, (tuple, list)) else (saved,):
                if isinstance(x, Tensor) and _is_plain(local(x)) and _address(local(x)) in addresses:
                    reached.add(_address(local(x)))
    return reached


def _is_plain(x: Tensor) -> bool:
    return type(x) is Tensor and x.layout == torch.strided and x.dim() > 0 and x.numel() > 0


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def make_probe(parts: ProbeParts) -> CarriedStateProbe:
    """The probe of this law for one watched model."""
    return CarriedStateProbe(parts)
