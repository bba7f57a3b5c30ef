"""Look once, early, which linear layers of the model follow each other with nothing between them that is not linear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from trueline.capture.model import patches
from trueline.capture.model.contents import attributes
from trueline.capture.model.layout import fsdp2_groups
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.linear_layers import LayersBelow, LinearPair
from trueline.capture.probes.losses.descent import roots_of
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.layers.columns import LayersInRow, TwoLayers

FIRST = 2
"""Age of the first step that is looked at, when all parts of a job are there."""
MAX_STEPS = 4
"""Steps whose losses are looked at for layers of the model, as one may be of a model beside it."""
MAX_PASSES = 4
"""Backward passes of that step that are looked at."""
MAX_PAIRS = 256
"""Pairs of layers that the row names."""

_OF_THEIR_OWN = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
"""Modules that begin with a linear map, whatever is in front of them."""


class LayerProbe:
    """The column ``layers_in_a_row``, of one step. Of the graph nothing is in_order beyond the step."""

    name = "layers in a row"
    moments = ("gradients",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard, self._passes = parts.model, parts.guard, parts.contributions
        self._is_over, self._num_steps = False, 0
        self._forget()
        self._switch = patches.Switch()
        patches.backward.add(self._at_backward, switch=self._switch)

    def begin(self, step: Step) -> bool:
        if self._is_over:
            return False
        due = step.watched and step.sampled and step.age >= FIRST
        self._forget()
        self._switch.set(due)
        return due

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        self._is_over = True
        self._forget()

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``layers_in_a_row``; absent where no loss was seen that a layer of the model takes part in."""
        pairs, num_layers, is_complete = self._pairs, len(self._weights), self._is_complete
        name_of = self._param_names(step)
        if not any(identity in name_of for identity in self._weights):
            self._num_steps += 1
            self._forget()
            self._switch.set(False)
            if self._num_steps >= MAX_STEPS:
                self.detach()
            return {}
        place_of = {identity: place for place, identity in enumerate(name_of)}
        in_order = sorted(
            (pair for pair in pairs.values() if self._is_always(pair)),
            key=lambda pair: place_of.get(id(pair.first.weight), 0),
        )
        rows = [row_of(pair, name_of) for pair in in_order]
        # A pair with a layer of another model: a generator and what judges it.
        rows = [row for row in rows if row.first and row.second]
        self.detach()
        return {"layers_in_a_row": LayersInRow(num_layers, tuple(rows[:MAX_PAIRS]), is_complete).to_json()}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _forget(self) -> None:
        self._num_passes, self._is_complete = 0, True
        self._weights: dict[int, Tensor] = {}
        self._pairs: dict[tuple[int, int], LinearPair] = {}
        self._before: defaultdict[int, set[int]] = defaultdict(set)
        self._after: defaultdict[int, set[int]] = defaultdict(set)

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if self._passes.backward_pass is None or self._num_passes >= MAX_PASSES:
            return
        with self._guard(self.name):
            self._num_passes += 1
            below = LayersBelow(roots_of(tensors))
            self._is_complete &= below.is_complete
            followed = set[Any]()
            for layer, pair in below.pairs():
                self._weights[id(layer.weight)] = layer.weight
                if pair is None:
                    self._before[id(layer.weight)].add(0)
                    continue
                first, second = id(pair.first.weight), id(layer.weight)
                self._pairs[first, second] = pair
                self._before[second].add(first)
                self._after[first].add(second)
                followed.add(pair.first.node)
            for node, layer in below.layers.items():
                if node not in followed:
                    self._after[id(layer.weight)].add(0)

    def _is_always(self, pair: LinearPair) -> bool:
        """True where the layers follow each other wherever they are called, and are layers of modules that do no more:
        a layer that is also called on data, or on something else, has reason to be there.
        """
        first, second = id(pair.first.weight), id(pair.second.weight)
        if first == second or self._after[first] != {second} or self._before[second] != {first}:
            return False
        return not any(
            isinstance(module, _OF_THEIR_OWN)
            and any(id(param) in (first, second) for param in attributes(module).get("_parameters", {}).values())
            for module in self._model.modules()
        )

    def _param_names(self, step: Step) -> dict[int, str]:
        """Names of the model's parameters by identity, those that FSDP2 has gathered included."""
        layout = step.layout
        name_of = {identity: layout.names[index] for identity, index in layout.index_of.items()}
        for group in fsdp2_groups(self._model):
            for param in group.fsdp_params:
                whole = getattr(param, "_unsharded_param", None)
                name_of[id(whole)] = name_of.get(id(param.sharded_param), "")
        return name_of


def row_of(pair: LinearPair, name_of: Mapping[int, str]) -> TwoLayers:
    """What the column holds of ``pair``, with the names of its layers by their weights' identities."""
    first, second = pair.first, pair.second
    names = [name_of.get(id(layer.weight), "").removesuffix(".weight") for layer in (first, second)]
    kernels = first.kernel, second.kernel
    weights = first.weight.numel() + second.weight.numel()
    flat = {} if pair.channels else {"taken": pair.taken, "elements": pair.elements}
    return TwoLayers(*names, first.inputs, first.outputs, second.outputs, kernels, pair.between, weights, **flat)


def make_probe(parts: ProbeParts) -> LayerProbe:
    """The probe of this law for one watched model."""
    return LayerProbe(parts)
