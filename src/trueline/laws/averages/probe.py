"""Averages of a model's parameters, as of EMA, SWA or a momentum teacher: some elements of an average and of what it
follows, around each update of the optimizer, and around calls of torch's ``AveragedModel.update_parameters``.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel

from trueline.capture.adapters.base import Guard
from trueline.capture.declared_averages import Average
from trueline.capture.model import patches
from trueline.capture.model.layout import Layout, unwrap
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.model.weight_copies import AveragedPair, WeightCopy, owner_of, pairs_of, weight_copies
from trueline.capture.probes.around_update.sampling import EARLY, NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import Gathered, ParamSlice, slice_at
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

NUM_SLICES = 8
"""Tensors a sample, in rotation, with contiguous elements of each: equal ones on all ranks."""

MAX_SAMPLES = 4
"""Samples of a step that are kept: of declared averages, and of calls."""

SEARCH_AGES = (0, 2)
"""Watched steps at which copies are sought, at the second where none was there at the first: what is averaged by hand
is made before the loop, and what a framework makes may come with its first steps."""

MAX_FORWARDS = 8
"""Forward passes of a step in front of which copies are looked at: averages that move between updates of the weights
move in front of the next one."""


class _AverageSample:
    """Elements of pairs of one average, copied at several moments. ``facts`` are ready for JSON."""

    def __init__(
        self, facts: dict[str, Any], pairs: Sequence[AveragedPair], step: Step, trained_ids: frozenset[int]
    ) -> None:
        chance = random.Random(step.number)
        # by the step and not by a counter, so that all ranks look at equal tensors
        first = step.number * NUM_SLICES % max(len(pairs), 1)
        self._slices: list[tuple[ParamSlice, AveragedPair]] = []
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
        owners = [owner_of(pair.average) for pair in pairs if pair.is_buffer]
        self.owner_ids = {id(owner) for owner in owners if owner is not None}
        self._stamps: list[Gathered] = []
        self.is_whole = bool(slices)

    def stamp(self, moment: str) -> None:
        """Copy the elements as they are now, at a ``moment``."""
        gathered = Gathered()
        for param_slice, pair in self._slices:
            for tensor in (pair.average(), pair.model()):
                view = param_slice.view(tensor) if isinstance(tensor, Tensor) else None
                if view is None or view.shape[0] != param_slice.num:
                    # a framework may have gathered parameters in front of a forward pass: a look less
                    self.is_whole = self.is_whole and moment == "forward"
                    return
                gathered.add(view)
        gathered.copy()
        self._stamps.append(gathered)
        self.facts["moments"].append(moment)

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


class _Glance:
    """Whether the weights, and a copy of them, are from an update to the next one what they were: elements of the same
    tensors of both, ``NUM_SLICES`` of them spread over the model. ``num`` are the elements.
    """

    def __init__(self, pairs: Sequence[AveragedPair]) -> None:
        params = [pair for pair in pairs if not pair.is_buffer]
        distance = max(len(params) // NUM_SLICES, 1)
        self._slices: list[tuple[ParamSlice, AveragedPair]] = []
        for pair in params[::distance][:NUM_SLICES]:
            model = pair.model()
            if isinstance(model, Tensor) and (param_slice := slice_at(pair.name, model, random.Random(pair.name))):
                # kept as long as the copy is there: it must not keep the model alive
                self._slices.append((replace(param_slice, param=model.new_empty(0)), pair))
        self.num = sum(param_slice.num for param_slice, _ in self._slices)

    def values(self) -> tuple[Tensor, Tensor] | None:
        """Elements [num] of the copy, in the format of the weights, and of the weights; None where one is elsewhere."""
        copies: list[Tensor] = []
        weights: list[Tensor] = []
        for param_slice, pair in self._slices:
            for views, tensor in ((copies, pair.average()), (weights, pair.model())):
                view = param_slice.view(tensor) if isinstance(tensor, Tensor) else None
                if view is None or view.shape[0] != param_slice.num:
                    return None
                views.append(view)
            if copies[-1].device != weights[0].device:  # to copy it there would wait
                return None
        return (torch.cat(copies).to(weights[0].dtype), torch.cat(weights)) if weights else None

    @staticmethod
    def changes(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Tensor:
        """int64 [4]: elements of the weights that changed, of the copy, those at which both are equal afterwards, and
        those at which the copy is not between what it was and what the weights were: it did not move towards these.
        """
        (copy, weights), (copy_after, weights_after) = before, after
        slack = 8 * torch.finfo(copy.dtype).eps * (copy.abs() + weights.abs())
        outside = (copy_after < torch.minimum(copy, weights) - slack) | (
            copy_after > torch.maximum(copy, weights) + slack
        )
        kinds = (weights != weights_after, copy != copy_after, copy_after == weights_after, outside)
        return torch.stack([kind.sum() for kind in kinds])


class AverageProbe:
    """Copies declared averages just before the update of a sampled step, just after it, and before the next one, so
    that it does not matter by what code they are averaged; and any ``AveragedModel`` of the watched model before and
    after its own update, however rare that is. What is like the model and nothing trains is looked at as a declared
    average is: whether it is one, what it does must show (fact ``found``).
    """

    name = "averages"
    moments = ("forward", "update", "updated")
    between = moments

    def __init__(self, guard: Guard, model: nn.Module, averages: Sequence[Average]) -> None:
        self._guard, self._model, self._declared = guard, model, averages
        self._copies: list[WeightCopy] = []
        self._ages_ahead = list(SEARCH_AGES)
        self._times = NowAndThen()
        self._times_of = ObjectTable[AveragedModel, NowAndThen]()
        self._pairs = ObjectTable[Any, tuple[Any, list[AveragedPair]]]()
        self._waiting = Waiting[list[_AverageSample]]()
        self._waiting_glances = Waiting[list[list[int]]]()
        self._glance_of: dict[int, _Glance] = {}
        self._read_ids = set[int]()
        self._forget()
        patches.average.add(self._before_call)
        patches.average.add(self._after_call, after=True)

    def detach(self) -> None:
        self._forget()
        self._copies, self._glance_of = [], {}
        patches.module_call.remove(self._at_module)
        patches.average.remove(self._before_call)
        patches.average.remove(self._after_call)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, in the step behind each, and in that behind a call; where there are
        copies, in every sampled one.
        """
        if not step.watched:
            self._forget()
            self._copies, self._glance_of = [], {}
            return False
        self._step, self._open, self._called_keys = step, None, set()
        self._due = False
        if step.sampled and (self._declared or self._copies or self._ages_ahead):
            self._due = True
        return self._due or bool(self._windows or self._glances or self._call_samples)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements since the update before, just before the next one."""
        windows = self._windows if self._begun_at == step.number - (moment != "updated") else []
        if moment == "forward":
            # in each step: what the job has let go of, or replaced, may be as large as the model
            if self._copies:
                self._copies = [copy for copy in self._copies if copy.is_alive]
            self._num_forwards += 1
            if self._num_forwards <= MAX_FORWARDS and step.age < EARLY:
                for sample in windows:
                    sample.stamp("forward")
            return {}
        for sample in windows:
            sample.stamp(moment)
        if moment == "updated":
            self._num_forwards = 0
            self._glances = self._first_glances(step) if self._due else []
            self._glanced_at = step.number
            return {}
        for sample in windows:
            sample.facts["reads"] = not self._read_ids.isdisjoint(sample.owner_ids)
        samples = [sample for sample in [*windows, *self._call_samples] if sample.is_whole][:MAX_SAMPLES]
        self._windows, self._call_samples = [], []
        tensors = self._second_glances(step)
        self._look_at_calls(is_on=False)
        if self._due:
            self._search(step)
            if (self._declared or self._copies) and self._times.due(step):
                self._begin_windows(step)
        if samples:
            self._waiting.add(step.number, samples)
        for number, sample in enumerate(samples):
            tensors |= sample.hand_over(f"average_{number}")
        return tensors

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        heads = self._waiting_glances.take(step.number)
        if heads is not None and "copy_changes" in host:
            rows = host["copy_changes"].tolist()
            columns["copy_changes"] = [n for head, counts in zip(heads, rows, strict=True) for n in (*head, *counts)]
        samples = self._waiting.take(step.number)
        if samples is not None:
            values = [tensor for sample in samples for tensor in sample.values(host)]
            columns["average_facts"] = json.dumps([sample.facts for sample in samples])
            columns["average_values"] = torch.cat(values).tolist()
        return columns

    def _forget(self) -> None:
        self._step: Step | None = None
        self._due = False
        self._windows: list[_AverageSample] = []
        self._begun_at = self._glanced_at = -1
        self._num_forwards = 0
        self._glances: list[tuple[int, _Glance, tuple[Tensor, Tensor]]] = []
        self._call_samples: list[_AverageSample] = []
        self._called_keys: set[str] = set()
        self._open: _AverageSample | None = None

    def _search(self, step: Step) -> None:
        """Seek copies when it is time."""
        if self._ages_ahead and step.age >= self._ages_ahead[0]:
            self._ages_ahead = [age for age in self._ages_ahead if age > step.age]
            self._copies = weight_copies(self._model, [average.average for average in self._declared])
            if self._copies:
                self._ages_ahead = []

    def _first_glances(self, step: Step) -> list[tuple[int, _Glance, tuple[Tensor, Tensor]]]:
        glances: list[tuple[int, _Glance, tuple[Tensor, Tensor]]] = []
        for number, pairs, _ in self._looked_at(step):
            glance = self._glance_of.get(number)
            if glance is None:
                glance = self._glance_of[number] = _Glance(pairs)
            if (values := glance.values()) is not None:
                glances.append((number, glance, values))
        return glances

    def _second_glances(self, step: Step) -> dict[str, Tensor]:
        """``copy_changes`` since the update before, int64 [copies, 4]."""
        glances, self._glances = self._glances, []
        if self._glanced_at != step.number - 1:
            return {}
        changes: list[Tensor] = []
        heads: list[list[int]] = []
        for number, glance, before in glances:
            after = glance.values()
            if after is not None:
                changes.append(glance.changes(before, after))
                heads.append([number, step.number - 1, glance.num])
        if not changes:
            return {}
        self._waiting_glances.add(step.number, heads)
        return {"copy_changes": torch.stack([change.to(changes[0].device) for change in changes])}

    def _looked_at(self, step: Step) -> Iterator[tuple[int, Sequence[AveragedPair], dict[str, Any]]]:
        """Number, pairs and facts of declared averages, then of what is like one."""
        for number, average in enumerate(self._declared):
            pairs = self._pairs_of(
                step.layout, average.average, self._model if average.model is None else average.model
            )
            yield number, pairs, {"name": average.name, "decay": average.decay, "found": False}
        for copy in self._copies:
            facts = {"name": copy.name or "the average", "decay": None, "found": True, "torchs": copy.is_torchs}
            yield len(self._declared) + copy.number, copy.pairs, facts

    def _begin_windows(self, step: Step) -> None:
        groups = [] if step.optimizer is None else step.optimizer.param_groups
        trained_ids = frozenset(id(param) for group in groups for param in group["params"] if param.requires_grad)
        for number, pairs, named in self._looked_at(step):
            has = sum(not pair.is_buffer for pair in pairs)
            facts = {"key": f"averages[{number}]", "step": step.number, "custom": False, "has": has, "moments": []}
            sample = _AverageSample(facts | named, pairs, step, trained_ids)
            sample.stamp("update")
            self._windows.append(sample)
        self._begun_at = step.number
        self._look_at_calls(is_on=any(window.owner_ids for window in self._windows))

    def _look_at_calls(self, *, is_on: bool) -> None:
        """Look from now on whether modules with buffers are called in evaluation mode, or look no more."""
        (patches.module_call.add if is_on else patches.module_call.remove)(self._at_module)
        self._read_ids = set()

    def _at_module(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not module.training:
            self._read_ids.add(id(module))

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
                "moments": [],
                "decay": None,
                "custom": _is_custom(average),
            }
            self._open = _AverageSample(facts, self._pairs_of(step.layout, average, model), step, frozenset())
            self._open.stamp("call")

    def _after_call(self, *args: Any, **kwargs: Any) -> None:
        sample, self._open = self._open, None
        if sample is not None:
            with self._guard(self.name), torch.no_grad():
                sample.stamp("called")
                self._call_samples.append(sample)

    def _is_ours(self, step: Step, model: nn.Module) -> bool:
        return unwrap(model) is unwrap(self._model) or any(
            id(param) in step.layout.index_of for param in model.parameters()
        )

    def _pairs_of(self, layout: Layout, average: Any, model: nn.Module) -> list[AveragedPair]:
        """The pairs of names that both have, sought anew where the model's parameters are others."""
        if not isinstance(average, nn.Module):
            return list(pairs_of(average, model))
        cached = self._pairs.get(average)
        if cached is None or cached[0] is not layout:
            cached = (layout, list(pairs_of(average, model)))
            self._pairs.set(average, cached)
        return cached[1]


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
