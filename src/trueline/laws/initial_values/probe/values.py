"""Summarise the parameters before the first update, in a few numbers each."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import Layout, clean_name, local, named_parameters
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.loaded_values import comparison
from trueline.capture.probes.loads import loads
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.initial_values.columns import (
    MAX_FROZEN,
    MAX_LOOKED,
    NUM_FIELDS,
    SMALLEST_NORMAL,
    FrozenParam,
    LoadedParam,
    frozen_text,
    loaded_text,
)
from trueline.laws.initial_values.probe.embeddings import EmbeddingRows


class InitialValueProbe:
    """The columns ``initial_values``, ``frozen_params`` and ``frozen_values``, and those of ``EmbeddingRows``, once:
    just before the update of the first step that is watched. And ``self_loads`` of steps before which there were more.
    """

    name = "initial values"
    moments = ("batch", "update")
    between = None

    def __init__(self, model: nn.Module) -> None:
        self._model, self._rows = model, EmbeddingRows(model)
        self._num_own = 0
        self._own_loads = Waiting[str]()

    def begin(self, step: Step) -> bool:
        return (step.watched and step.age == 0) or (step.sampled and loads.num_own != self._num_own)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        if moment == "batch":
            if step.age == 0:
                self._rows.see(step)
            return {}
        own_loads = self._take_own_loads(step) if loads.listens else {}
        return own_loads if step.age else own_loads | self._take_once(step)

    def _take_own_loads(self, step: Step) -> dict[str, Any]:
        """Float32 [loads] ``self_loads_changed``; their text waits."""
        self._num_own = loads.num_own
        own_loads = loads.own_beside(self._model)
        self._own_loads.add(step.number, json.dumps([load for load, _ in own_loads]))
        changed = [has_changed.to(step.layout.device, torch.float32) for _, has_changed in own_loads]
        return {"self_loads_changed": torch.stack(changed) if changed else torch.zeros(0)}

    def _take_once(self, step: Step) -> dict[str, Any]:
        columns: dict[str, Any] = {"initial_values": initial_values(step.layout)} | self._rows.take(step)
        columns |= _declared_ties(self._model)
        if loads.listens:
            columns["loads"] = json.dumps(list(loads.beside(self._model)))
            columns |= _loaded(self._model, step.layout.device)
        if step.layout.frozen:
            columns |= _frozen(self._model, step.layout)
        if step.layout.frozen and loads.listens:
            frozen = {name for name, param in named_parameters(self._model) if not param.requires_grad}
            columns["frozen_loaded"] = len(frozen & loads.filled(self._model))
        return columns

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        names = ("initial_values", "frozen_values", "embedding_values", "loaded_compared", "self_loads_changed")
        columns: dict[str, Any] = {name: host[name].flatten().tolist() for name in names if name in host}
        text = self._own_loads.take(step.number)
        return columns if text is None else columns | {"self_loads": text}


def _loaded(model: nn.Module, device: torch.device) -> dict[str, Any]:
    """``loaded_params`` and, float64 [P, fields], ``loaded_compared``."""
    compared = list(loads.values.compared(model))
    params = [
        LoadedParam(
            pair.name, pair.way, pair.shape, pair.rows_added, pair.call.kind.__name__, pair.call.call, pair.call.line
        )
        for pair in compared
    ]
    text: dict[str, Any] = {"loaded_params": loaded_text(params)}
    return text | ({"loaded_compared": comparison(compared, device)} if compared else {})


def _frozen(model: nn.Module, layout: Layout) -> dict[str, Any]:
    """``frozen_params`` and, float64 [F, fields], ``frozen_values``."""
    params = named_parameters(model)
    last_trained = max((number for number, (_, param) in enumerate(params) if param.requires_grad), default=len(params))
    frozen = [(number, name, param) for number, (name, param) in enumerate(params) if not param.requires_grad]
    frozen = frozen[-MAX_FROZEN:]
    if not frozen:
        return {}
    rows = [numbers_of(local(param).detach()) for _, _, param in frozen]
    # A teacher, or a target network, is a frozen copy that stands behind what is trained, and is no head of it.
    copies = _copies(params)
    # What is frozen within the last layer that is trained is a part of it, as beside adapters.
    layer = _layer_of(params[last_trained][0]) if last_trained < len(params) else ""
    facts: list[FrozenParam] = []
    for number, name, param in frozen:
        is_apart = name.partition(".")[0] not in copies and not (layer and name.startswith(layer))
        facts.append(FrozenParam(name, tuple(param.shape), number > last_trained and is_apart))
    return {"frozen_params": frozen_text(facts), "frozen_values": torch.stack([row.to(layout.device) for row in rows])}


def _declared_ties(model: nn.Module) -> dict[str, Any]:
    """``declared_ties``, where a model declares any; nothing of parameters that a framework has put elsewhere."""
    lost: list[tuple[str, str]] = []
    has_declared = False
    for name, module in model.named_modules():
        # by the attribute itself: a wrapper may pass on those of what is inside
        ties = vars(module).get("all_tied_weights_keys")
        for tied, source in ties.items() if type(ties) is dict else ():
            pair = [_param_at(module, str(path)) for path in (tied, source)]
            if any(param is None or not param.numel() for param in pair):
                continue
            has_declared = True
            if pair[0] is not pair[1] and len({local(param).data_ptr() for param in pair}) == 2:
                lost.append((clean_name(f"{name}.{tied}".strip(".")), clean_name(f"{name}.{source}".strip("."))))
    return {"declared_ties": json.dumps(list(dict.fromkeys(lost)))} if has_declared else {}


def _param_at(module: Any, path: str) -> Any:
    """The parameter that ``path`` leads to from ``module``; None where there is none."""
    *parents, name = path.split(".")
    for part in parents:
        module = module._modules.get(part) if isinstance(module, nn.Module) else None
    return module._parameters.get(name) if isinstance(module, nn.Module) else None


def _layer_of(name: str) -> str:
    """``encoder.layer.1.`` of what is in it; '' of a parameter in no numbered layer."""
    parts = name.split(".")
    numbered = [index for index, part in enumerate(parts[:-1]) if part.isdecimal()]
    return ".".join(parts[: numbered[0] + 1]) + "." if numbered else ""


def _copies(params: Sequence[tuple[str, nn.Parameter]]) -> set[str]:
    """First components of names whose parameters have the names and shapes of those of another that is trained."""
    forms: defaultdict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    trained = set[str]()
    for name, param in params:
        part, _, rest = name.partition(".")
        forms[part].append((rest, tuple(param.shape)))
        trained |= {part} if param.requires_grad else set()
    trained_forms = [forms[part] for part in trained]
    return {part for part in forms.keys() - trained if forms[part] in trained_forms}


def initial_values(layout: Layout) -> Tensor:
    """Float64 [P, fields]: ``InitialValues`` of each watched parameter, on the device of the model."""
    rows = [numbers_of(local(param).detach()) for param in layout.params]
    return torch.stack([row.to(layout.device) for row in rows])


def numbers_of(param: Tensor) -> Tensor:
    """Float64 [fields] of ``InitialValues``; zeros of what has no elements here, or none that can be read."""
    if param.layout is not torch.strided or not param.is_floating_point() or not param.numel():
        return torch.zeros(NUM_FIELDS, dtype=torch.float64)
    x = _spread_elements(param).to(torch.float64)
    finite = x.isfinite()
    num = finite.sum()
    values = torch.where(finite, x, 0.0)
    mean = values.sum() / num
    squares = torch.where(finite, values - mean, 0.0).square()
    variance = squares.sum() / num
    magnitudes = values.abs()
    subnormal = ((magnitudes > 0) & (magnitudes < SMALLEST_NORMAL)).sum()
    kurtosis = squares.square().sum() / num / variance.square()
    counts = [num.new_full((), x.numel()), x.numel() - num, subnormal]
    return torch.stack([number.double() for number in (*counts, mean, variance.sqrt(), kurtosis, magnitudes.max())])


def _spread_elements(param: Tensor) -> Tensor:
    """Up to ``MAX_LOOKED`` elements, at a distance that is prime to their number, so that they are of all columns."""
    distance = max(param.numel() // MAX_LOOKED, 1)
    while distance > 1 and math.gcd(distance, param.numel()) > 1:
        distance += 1
    return param.reshape(-1)[::distance]


def make_probe(parts: ProbeParts) -> InitialValueProbe:
    """The probe of this law for one watched model."""
    return InitialValueProbe(parts.model)
