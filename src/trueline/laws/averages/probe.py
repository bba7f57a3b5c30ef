"""Averages of a model's parameters, as of EMA, SWA or a momentum teacher: some elements of an average and of what it
follows, around each update of the optimizer, and around calls of torch's ``AveragedModel.update_parameters``.
"""

from __future__ import annotations

import functools
import gc
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
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import Gathered, Place, place_at
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

NUM_PLACES = 8
"""Tensors a sample, in rotation, with contiguous elements of each: the same ones on all ranks."""

MAX_SAMPLES = 4
"""Samples of a step that are kept: of declared averages, and of calls."""

MAX_FOUND = 4
"""Copies of the model that are looked at without being declared."""

SEARCHED_AT = 2
"""Watched steps after which copies are sought, once: what is averaged by hand is made before the loop."""

Held = Callable[[], Any]
"""What is held under a name now."""


@dataclass(frozen=True, eq=False)
class _Pair:
    """An average and what it follows, of one name."""

    name: str
    average: Held
    model: Held
    is_buffer: bool


class _Sample:
    """Elements of pairs of one average, copied at several moments. ``facts`` are ready for JSON."""

    def __init__(self, facts: dict[str, Any], pairs: Sequence[_Pair], step: Step, held: frozenset[int]) -> None:
        chance = random.Random(step.number)
        first = step.number * NUM_PLACES % max(len(pairs), 1)
        self._places: list[tuple[Place, _Pair]] = []
        slices: list[list[Any]] = []
        for pair in [*pairs[first:], *pairs[:first]][:NUM_PLACES]:
            average, model = pair.average(), pair.model()
            place = place_at(pair.name, model, chance) if isinstance(model, Tensor) else None
            view = place.of(average) if place is not None and isinstance(average, Tensor) else None
            own = None if place is None else place.of(model)
            if place is None or view is None or own is None:
                continue
            self._places.append((place, pair))
            kinds = [pair.is_buffer, model.requires_grad, id(average) in held, view.data_ptr() == own.data_ptr()]
            slices.append([pair.name, place.num, _dtype(view), _dtype(own), *kinds])
        self.facts = facts | {"slices": slices}
        self._stamps: list[Gathered] = []
        self.whole = bool(slices)

    def stamp(self) -> None:
        """Copy the elements as they are now."""
        gathered = Gathered()
        for place, pair in self._places:
            for held in (pair.average(), pair.model()):
                view = place.of(held) if isinstance(held, Tensor) else None
                if view is None or view.shape[0] != place.num:
                    self.whole = False
                    return
                gathered.add(view)
        gathered.copy()
        self._stamps.append(gathered)

    def hand_over(self, name: str) -> dict[str, Tensor]:
        """The copies by names that begin with ``name``, to be brought to the host."""
        self._places = []
        found: dict[str, Tensor] = {}
        for at, stamp in enumerate(self._stamps):
            found |= stamp.hand_over(f"{name}_{at}")
        return found

    def values(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """At each moment, of each pair the elements of the average and of the model."""
        return [each for stamp in self._stamps for each in stamp.values(host)]


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
        self._found: list[weakref.ref[nn.Module]] | None = None
        self._times = NowAndThen()
        self._times_of = ObjectTable[AveragedModel, NowAndThen]()
        self._pairs = ObjectTable[Any, tuple[Any, list[_Pair]]]()
        self._waiting = Waiting[list[_Sample]]()
        self._forget()
        patches.average.add(self._before_call)
        patches.average.add(self._after_call, after=True)

    def detach(self) -> None:
        """Stop listening."""
        self._forget()
        patches.average.remove(self._before_call)
        patches.average.remove(self._after_call)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, in the step behind each, and in that behind a call."""
        if not step.watched:
            self._forget()
            return False
        self._step, self._open, self._seen = step, None, set()
        if self._found is None and step.sampled and step.age >= SEARCHED_AT:
            self._found = [weakref.ref(each) for each in copies_of(self._model, self._declared)]
        self._due = bool(self._declared or self._found) and step.sampled and self._times.due(step)
        return self._due or bool(self._windows or self._called)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """What averages did since the update before, just before the next one."""
        windows = self._windows if self._begun == step.number - (moment == "update") else []
        for sample in windows:
            sample.stamp()
        if moment == "updated":
            return {}
        done = [sample for sample in [*windows, *self._called] if sample.whole][:MAX_SAMPLES]
        self._windows, self._called = [], []
        if self._due:
            self._begin_windows(step)
        if not done:
            return {}
        self._waiting.put(step.number, done)
        return {
            name: copy
            for number, sample in enumerate(done)
            for name, copy in sample.hand_over(f"average_{number}").items()
        }

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``average_facts`` and ``average_values``."""
        samples = self._waiting.take(step.number)
        if samples is None:
            return {}
        values = [each for sample in samples for each in sample.values(host)]
        return {
            "average_facts": json.dumps([sample.facts for sample in samples]),
            "average_values": torch.cat(values).tolist(),
        }

    def _forget(self) -> None:
        self._step: Step | None = None
        self._due = False
        self._windows: list[_Sample] = []
        self._begun = -1
        self._called: list[_Sample] = []
        self._seen: set[str] = set()
        self._open: _Sample | None = None

    def _begin_windows(self, step: Step) -> None:
        groups = [] if step.optimizer is None else step.optimizer.param_groups
        held = frozenset(id(param) for group in groups for param in group["params"])
        found = [Average(each) for each in (ref() for ref in self._found or ()) if each is not None]
        for at, each in enumerate([*self._declared, *found]):
            facts = {
                "key": f"averages[{at}]",
                "name": each.name,
                "step": step.number,
                "moments": ["update", "updated", "update"],
                "decay": each.decay,
                "custom": False,
                "found": each in found,
            }
            pairs = self._pairs_of(step.layout, each.average, each.model or self._model)
            sample = _Sample(facts, pairs, step, held)
            sample.stamp()
            self._windows.append(sample)
        self._begun = step.number

    def _before_call(self, average: AveragedModel, model: Any, *args: Any, **kwargs: Any) -> None:
        step, self._open = self._step, None
        if step is None or not isinstance(model, nn.Module) or not self._is_ours(step, model):
            return
        key = f"AveragedModel {_number_of(average)}"
        times = self._times_of.get(average) or NowAndThen()
        self._times_of.set(average, times)
        if key in self._seen or not times.due(step):
            return
        self._seen.add(key)
        with self._guard(self.name), torch.no_grad():
            facts = {
                "key": key,
                "name": "AveragedModel",
                "step": step.number - 1,
                "moments": ["call", "called"],
                "decay": None,
                "custom": _is_custom(average),
            }
            self._open = _Sample(facts, self._pairs_of(step.layout, average, model), step, frozenset())
            self._open.stamp()

    def _after_call(self, *args: Any, **kwargs: Any) -> None:
        sample, self._open = self._open, None
        if sample is not None:
            with self._guard(self.name), torch.no_grad():
                sample.stamp()
                self._called.append(sample)

    def _is_ours(self, step: Step, model: nn.Module) -> bool:
        return unwrap(model) is unwrap(self._model) or any(
            id(each) in step.layout.index_of for each in model.parameters()
        )

    def _pairs_of(self, layout: Layout, average: Any, model: nn.Module) -> list[_Pair]:
        """The pairs of names that both have, sought anew where the model's parameters are others."""
        if not isinstance(average, nn.Module):
            return list(_pairs(average, model))
        known = self._pairs.get(average)
        if known is None or known[0] is not layout:
            known = (layout, list(_pairs(average, model)))
            self._pairs.set(average, known)
        return known[1]


def copies_of(model: nn.Module, declared: Sequence[Average]) -> list[nn.Module]:
    """Modules of the model's class with parameters of the same names and shapes, none of them the model's own or with a
    gradient; without those that are declared or torch's ``AveragedModel`` holds.
    """
    inner = unwrap(model)
    shapes = [(name, param.shape) for name, param in inner.named_parameters()]
    own = {id(param) for param in inner.parameters()}
    known = {id(part) for each in declared if isinstance(each.average, nn.Module) for part in each.average.modules()}
    alike: list[nn.Module] = []
    for each in gc.get_referrers(type(inner), AveragedModel):  # as an object refers to its class
        if type(each) is AveragedModel:
            known |= {id(part) for part in each.modules()}
        elif type(each) is type(inner) and each is not inner and shapes:
            params = dict(each.named_parameters())
            if [(name, param.shape) for name, param in params.items()] == shapes and not any(
                id(param) in own or param.grad is not None for param in params.values()
            ):
                alike.append(each)
    return [each for each in alike if id(each) not in known][:MAX_FOUND]


def _pairs(average: Any, model: nn.Module) -> Iterator[_Pair]:
    followed = dict(_tensors(model))
    if isinstance(average, nn.Module):
        for name, (held, is_buffer) in _tensors(average):
            if name in followed:
                yield _Pair(name, held, followed[name][0], is_buffer)
    elif isinstance(average, Mapping):
        for key in average:
            name = clean_name(str(key))
            if name in followed:
                yield _Pair(name, functools.partial(average.get, key), *followed[name])
    else:
        params = ((name, held) for name, (held, is_buffer) in followed.items() if not is_buffer)
        for at, (name, held) in enumerate(params):
            if at < len(average):
                yield _Pair(name, functools.partial(average.__getitem__, at), held, False)


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[Held, bool]]]:
    """Clean FQN of each parameter once, in their order, then of each buffer; what holds it, and whether it is a
    buffer.
    """
    for is_buffer in (False, True):
        seen = set[int]()
        for prefix, module in unwrap(model).named_modules():
            table = module._buffers if is_buffer else module._parameters
            for name, tensor in table.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield (
                        clean_name(f"{prefix}.{name}" if prefix else name),
                        (functools.partial(_held, weakref.ref(module), name, is_buffer), is_buffer),
                    )


def _held(ref: weakref.ref[nn.Module], name: str, is_buffer: bool) -> Tensor | None:
    """The tensor of this name; None once the module is gone, which the user may drop meanwhile."""
    module = ref()
    return None if module is None else (module._buffers if is_buffer else module._parameters).get(name)


_MADE = ObjectTable[AveragedModel, int]()
_numbers = itertools.count()


def _number_of(average: AveragedModel) -> int:
    """Its number among those that were updated, from 0."""
    number = _MADE.get(average)
    if number is None:
        number = next(_numbers)
        _MADE.set(average, number)
    return number


def _is_custom(average: AveragedModel) -> bool:
    """Whether it averages by a function that is not torch's."""
    return any(
        getattr(each, "__module__", swa_utils.__name__) != swa_utils.__name__
        for each in (average.avg_fn, average.multi_avg_fn)
        if each is not None
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_probe(parts: ProbeParts) -> AverageProbe:
    """The probe of this law for one watched model."""
    return AverageProbe(parts.guard, parts.model, parts.averages)
