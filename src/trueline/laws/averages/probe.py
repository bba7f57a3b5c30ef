"""Averages of a model's parameters, as of EMA, SWA or a momentum teacher: some elements of an average and of what it
follows, around each update of the optimizer, and around calls of torch's ``AveragedModel.update_parameters``.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel

from trueline.capture.adapters.base import Guard
from trueline.capture.declared_averages import Average
from trueline.capture.model import patches
from trueline.capture.model.layout import Layout, clean_name, unwrap
from trueline.capture.model.live_objects import instances_of
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import Gathered, ParamSlice, slice_at
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

NUM_SLICES = 8
"""Tensors a sample, in rotation, with contiguous elements of each: equal ones on all ranks."""

MAX_SAMPLES = 4
"""Samples of a step that are kept: of declared averages, and of calls."""

MAX_COPIES = 4
"""Copies of the model that are looked at without being declared."""

SEARCH_AGE = 2
"""Watched steps after which copies are sought, once: what is averaged by hand is made before the loop."""

TensorGetter = Callable[[], Any]
"""Returns the tensor that is held under a name now."""


@dataclass(frozen=True, eq=False)
class _AveragedPair:
    """An average and what it follows, of one name."""

    name: str
    average: TensorGetter
    model: TensorGetter
    is_buffer: bool


class _AverageSample:
    """Elements of pairs of one average, copied at several moments. ``facts`` are ready for JSON."""

    def __init__(
        self, facts: dict[str, Any], pairs: Sequence[_AveragedPair], step: Step, trained_ids: frozenset[int]
    ) -> None:
        chance = random.Random(step.number)
        # by the step and not by a counter, so that all ranks look at equal tensors
        first = step.number * NUM_SLICES % max(len(pairs), 1)
        self._slices: list[tuple[ParamSlice, _AveragedPair]] = []
        slices: list[list[Any]] = []
        for pair in [*pairs[first:], *pairs[:first]][:NUM_SLICES]:
            average, model = pair.average(), pair.model()
            param_slice = slice_at(pair.name, model, chance) if isinstance(model, Tensor) else None
            view = param_slice.view(average) if param_slice is not None and isinstance(average, Tensor) else None
            model_view = None if param_slice is None else param_slice.view(model)
            if param_slice is None or view is None or model_view is None:
                continue
            self._slices.append((param_slice, pair))
            flags = [
                pair.is_buffer,
                model.requires_grad,
                id(average) in trained_ids,
                view.data_ptr() == model_view.data_ptr(),
            ]
            slices.append([pair.name, param_slice.num, _dtype(view), _dtype(model_view), *flags])
        self.facts = facts | {"slices": slices}
        self._stamps: list[Gathered] = []
        self.is_whole = bool(slices)

    def stamp(self) -> None:
        """Copy the elements as they are now."""
        gathered = Gathered()
        for param_slice, pair in self._slices:
            for tensor in (pair.average(), pair.model()):
                view = param_slice.view(tensor) if isinstance(tensor, Tensor) else None
                if view is None or view.shape[0] != param_slice.num:
                    self.is_whole = False
                    return
                gathered.add(view)
        gathered.copy()
        self._stamps.append(gathered)

    def hand_over(self, name: str) -> dict[str, Tensor]:
        """The copies by names that begin with ``name``, to be brought to the host."""
        # the parameters must not be kept alive until the values are on the host
        self._slices = []
        copies: dict[str, Tensor] = {}
        for number, stamp in enumerate(self._stamps):
            copies |= stamp.hand_over(f"{name}_{number}")
        return copies

    def values(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """At each moment, of each pair the elements of the average and of the model."""
        return [values for stamp in self._stamps for values in stamp.values(host)]


class AverageProbe:
    """Copies declared averages just before the update of a sampled step, just after it, and before the next one, so
    that it does not matter by what code they are averaged; and any ``AveragedModel`` of the watched model before and
    after its own update, however rare that is. A module like the model that nothing trains is looked at as a declared
    average is: whether it is one, what it does must show (fact ``found``).
    """

    name = "averages"
    moments = ("update", "updated")
    between = moments

    def __init__(self, guard: Guard, model: nn.Module, averages: Sequence[Average]) -> None:
        self._guard, self._model, self._declared = guard, model, averages
        self._copies: list[weakref.ref[nn.Module]] | None = None
        self._times = NowAndThen()
        self._times_of = ObjectTable[AveragedModel, NowAndThen]()
        self._pairs = ObjectTable[Any, tuple[Any, list[_AveragedPair]]]()
        self._waiting = Waiting[list[_AverageSample]]()
        self._forget()
        patches.average.add(self._before_call)
        patches.average.add(self._after_call, after=True)

    def detach(self) -> None:
        self._forget()
        patches.average.remove(self._before_call)
        patches.average.remove(self._after_call)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, in the step behind each, and in that behind a call."""
        if not step.watched:
            self._forget()
            return False
        self._step, self._open, self._called_keys = step, None, set()
        if self._copies is None and step.sampled and step.age >= SEARCH_AGE:
            self._copies = [weakref.ref(copy) for copy in model_copies(self._model, self._declared)]
        self._due = bool(self._declared or self._copies) and step.sampled and self._times.due(step)
        return self._due or bool(self._windows or self._call_samples)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements since the update before, just before the next one."""
        windows = self._windows if self._begun_at == step.number - (moment == "update") else []
        for sample in windows:
            sample.stamp()
        if moment == "updated":
            return {}
        samples = [sample for sample in [*windows, *self._call_samples] if sample.is_whole][:MAX_SAMPLES]
        self._windows, self._call_samples = [], []
        if self._due:
            self._begin_windows(step)
        if not samples:
            return {}
        self._waiting.add(step.number, samples)
        return {
            name: copy
            for number, sample in enumerate(samples)
            for name, copy in sample.hand_over(f"average_{number}").items()
        }

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        samples = self._waiting.take(step.number)
        if samples is None:
            return {}
        values = [tensor for sample in samples for tensor in sample.values(host)]
        return {
            "average_facts": json.dumps([sample.facts for sample in samples]),
            "average_values": torch.cat(values).tolist(),
        }

    def _forget(self) -> None:
        self._step: Step | None = None
        self._due = False
        self._windows: list[_AverageSample] = []
        self._begun_at = -1
        self._call_samples: list[_AverageSample] = []
        self._called_keys: set[str] = set()
        self._open: _AverageSample | None = None

    def _begin_windows(self, step: Step) -> None:
        groups = [] if step.optimizer is None else step.optimizer.param_groups
        trained_ids = frozenset(id(param) for group in groups for param in group["params"])
        copies = [Average(average) for average in (ref() for ref in self._copies or ()) if average is not None]
        for number, average in enumerate([*self._declared, *copies]):
            facts = {
                "key": f"averages[{number}]",
                "name": average.name,
                "step": step.number,
                "moments": ["update", "updated", "update"],
                "decay": average.decay,
                "custom": False,
                "found": average in copies,
            }
            pairs = self._pairs_of(step.layout, average.average, average.model or self._model)
            sample = _AverageSample(facts, pairs, step, trained_ids)
            sample.stamp()
            self._windows.append(sample)
        self._begun_at = step.number

    def _before_call(self, average: AveragedModel, model: Any, *args: Any, **kwargs: Any) -> None:
        step, self._open = self._step, None
        if step is None or not isinstance(model, nn.Module) or not self._is_ours(step, model):
            return
        key = f"AveragedModel {_number_of(average)}"
        times = self._times_of.get(average) or NowAndThen()
        self._times_of.set(average, times)
        if key in self._called_keys or not times.due(step):
            return
        self._called_keys.add(key)
        with self._guard(self.name), torch.no_grad():
            facts = {
                "key": key,
                "name": "AveragedModel",
                "step": step.number - 1,
                "moments": ["call", "called"],
                "decay": None,
                "custom": _is_custom(average),
            }
            self._open = _AverageSample(facts, self._pairs_of(step.layout, average, model), step, frozenset())
            self._open.stamp()

    def _after_call(self, *args: Any, **kwargs: Any) -> None:
        sample, self._open = self._open, None
        if sample is not None:
            with self._guard(self.name), torch.no_grad():
                sample.stamp()
                self._call_samples.append(sample)

    def _is_ours(self, step: Step, model: nn.Module) -> bool:
        return unwrap(model) is unwrap(self._model) or any(
            id(param) in step.layout.index_of for param in model.parameters()
        )

    def _pairs_of(self, layout: Layout, average: Any, model: nn.Module) -> list[_AveragedPair]:
        """The pairs of names that both have, sought anew where the model's parameters are others."""
        if not isinstance(average, nn.Module):
            return list(_pairs(average, model))
        cached = self._pairs.get(average)
        if cached is None or cached[0] is not layout:
            cached = (layout, list(_pairs(average, model)))
            self._pairs.set(average, cached)
        return cached[1]


def model_copies(model: nn.Module, declared: Sequence[Average]) -> list[nn.Module]:
    """Modules of the model's class with parameters of the same names and shapes, none of them the model's own or with a
    gradient; without those that are declared or torch's ``AveragedModel`` holds.
    """
    inner = unwrap(model)
    shapes = [(name, param.shape) for name, param in inner.named_parameters()]
    own_ids = {id(param) for param in inner.parameters()}
    averages = [average.average for average in declared if isinstance(average.average, nn.Module)]
    known_ids = {id(part) for average in averages for part in average.modules()}
    copies: list[nn.Module] = []
    for module in instances_of(type(inner), AveragedModel):
        if type(module) is AveragedModel:
            known_ids |= {id(part) for part in module.modules()}
        elif type(module) is type(inner) and module is not inner and shapes:
            params = dict(module.named_parameters())
            if [(name, param.shape) for name, param in params.items()] == shapes and not any(
                id(param) in own_ids or param.grad is not None for param in params.values()
            ):
                copies.append(module)
    return [copy for copy in copies if id(copy) not in known_ids][:MAX_COPIES]


def _pairs(average: Any, model: nn.Module) -> Iterator[_AveragedPair]:
    followed = dict(_tensors(model))
    if isinstance(average, nn.Module):
        for name, (get_tensor, is_buffer) in _tensors(average):
            if name in followed:
                yield _AveragedPair(name, get_tensor, followed[name][0], is_buffer)
    elif isinstance(average, Mapping):
        for key in average:
            name = clean_name(str(key))
            if name in followed:
                yield _AveragedPair(name, functools.partial(average.get, key), *followed[name])
    else:
        params = ((name, get_tensor) for name, (get_tensor, is_buffer) in followed.items() if not is_buffer)
        for index, (name, get_tensor) in enumerate(params):
            if index < len(average):
                yield _AveragedPair(name, functools.partial(average.__getitem__, index), get_tensor, False)


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[TensorGetter, bool]]]:
    """Clean FQN of each parameter once, in their order, then of each buffer; what holds it, and whether it is a
    buffer.
    """
    for is_buffer in (False, True):
        seen_ids = set[int]()
        for prefix, module in unwrap(model).named_modules():
            table = module._buffers if is_buffer else module._parameters
            for name, tensor in table.items():
                if tensor is not None and id(tensor) not in seen_ids:
                    seen_ids.add(id(tensor))
                    yield (
                        clean_name(f"{prefix}.{name}" if prefix else name),
                        (functools.partial(_get_tensor, weakref.ref(module), name, is_buffer), is_buffer),
                    )


def _get_tensor(ref: weakref.ref[nn.Module], name: str, is_buffer: bool) -> Tensor | None:
    """The tensor of this name; None once the module is gone, which the user may drop meanwhile."""
    module = ref()
    return None if module is None else (module._buffers if is_buffer else module._parameters).get(name)


_NUMBER_BY_AVERAGE = ObjectTable[AveragedModel, int]()
_next_numbers = itertools.count()


def _number_of(average: AveragedModel) -> int:
    """Its number among those that were updated, from 0."""
    number = _NUMBER_BY_AVERAGE.get(average)
    if number is None:
        number = next(_next_numbers)
        _NUMBER_BY_AVERAGE.set(average, number)
    return number


def _is_custom(average: AveragedModel) -> bool:
    """True if it averages by a function that is not torch's."""
    return any(
        getattr(function, "__module__", swa_utils.__name__) != swa_utils.__name__
        for function in (average.avg_fn, average.multi_avg_fn)
        if function is not None
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_probe(parts: ProbeParts) -> AverageProbe:
    """The probe of this law for one watched model."""
    return AverageProbe(parts.guard, parts.model, parts.averages)
