"""Sampled updates as a Run has them: slices of parameters with what surrounds their update.

K elements of one slice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from trueline.judge.series.update_rules import GRAD, PARAM, Array
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

_NUMBERS = ("step", "mu_product", "param_norm")
"""States of which there is one number for all elements of a parameter."""


@dataclass(frozen=True)
class Slice:
    """K elements of one parameter around one update of ``rank`` at ``step``.

    ``law`` is the class of torch.optim whose rules the optimizer follows, or another that is known, '' for any other.
    ``before`` and ``after`` are float64 [K] by what they are of; numbers that hold for all elements are in
    ``numbers_before`` and ``numbers_after``. ``dtypes`` are by name, without 'torch.'. ``has_gradient`` is whether
    ``.grad`` was there, ``trains`` whether the parameter asks for one, ``numel`` its elements, ``shape`` its own where
    its law needs that. ``skipped`` says that a gradient scaler told a fused update to change nothing. The first element
    is the one of the flat index ``start``, and ``optimizer_number`` that of its optimizer among those of its process,
    in the order of their making.
    """

    step: int
    rank: int
    name: str
    optimizer: str
    law: str
    settings: Mapping[str, Any]
    before: Mapping[str, Array]
    after: Mapping[str, Array]
    numbers_before: Mapping[str, float]
    numbers_after: Mapping[str, float]
    dtypes: Mapping[str, str]
    numel: int
    has_gradient: bool
    trains: bool
    is_own: bool
    skipped: bool
    shape: tuple[int, ...] = ()
    start: int = 0
    optimizer_number: int = 0

    @property
    def end(self) -> int:
        """The flat index behind the last element."""
        return self.start + len(self.before[PARAM])

    @property
    def unit(self) -> float:
        """The coarsest unit roundoff of what the update computes with."""
        return max(FORMATS[dtype].unit for dtype in self.dtypes.values())

    def tiny(self, name: str) -> float:
        """Largest loss of a value of this name to underflow: the smallest number of its format, or where that format
        reaches to 1e-38 the smallest normal one, as some devices flush smaller ones to zero.
        """
        kind = FORMATS[self.dtypes.get(name, self.dtypes[PARAM])]
        normal = kind.smallest / (2 * kind.unit)
        return normal if normal < 1e-30 else kind.smallest


@dataclass(frozen=True)
class CopyPair:
    """[K] elements of a parameter as the forward pass of ``step`` used them (``working``, of ``dtype``), and of the
    copy in higher precision that the optimizer updates. Not ``certain`` where that was found by its order and shape.
    """

    step: int
    rank: int
    name: str
    dtype: str
    working: Array
    master: Array
    certain: bool


@dataclass(frozen=True)
class UnheldSample:
    """[K] elements, the same ones in each sample, of a parameter of the model that the optimizer does not hold, before
    the update. ``version`` is how often it was written to, ``trains`` whether it asks for a gradient.
    """

    step: int
    rank: int
    name: str
    values: Array
    version: int
    trains: bool


@dataclass(frozen=True)
class SampledUpdates:
    """The updates of a Run that were sampled. ``outside`` has, by (step, rank), the names of parameters that have a
    gradient and that the optimizer does not hold, ``num_held`` how many of the model's it does hold, and ``frozen`` the
    names of those that it holds and that are frozen, where it holds no others.
    """

    slices: tuple[Slice, ...]
    num_held: Mapping[tuple[int, int], int]
    outside: Mapping[tuple[int, int], Sequence[str]]
    optimizers: tuple[str, ...]
    copies: tuple[CopyPair, ...] = ()
    unheld: tuple[UnheldSample, ...] = ()
    frozen: Mapping[tuple[int, int], Sequence[str]] = field(default_factory=dict[tuple[int, int], Sequence[str]])


@memoized
def sampled_updates(run: Run) -> SampledUpdates:
    """All of them, by step, then rank. Raises ``CannotTell`` where there are none."""
    values = run.lists("update_values")
    slices: list[Slice] = []
    num_held: dict[tuple[int, int], int] = {}
    outside: dict[tuple[int, int], Sequence[str]] = {}
    frozen: dict[tuple[int, int], Sequence[str]] = {}
    optimizers: dict[str, None] = {}
    copies: list[CopyPair] = []
    unheld: list[UnheldSample] = []
    for key, text in run.texts("update_facts").items():
        if key not in values:
            continue
        facts = json.loads(text)
        slices += slices_of(key, facts, values[key])
        copies += _copy_pairs(key, facts, values[key])
        unheld += _unheld_samples(key, facts, values[key])
        num_held[key], outside[key], frozen[key] = facts["num_held"], facts["outside"], facts.get("held_frozen", ())
        optimizers[facts["optimizer"]] = None
    if not num_held:
        has_optimizer = run.has("optimizer_digest")
        raise CannotTell(
            "no update was sampled: updates are compiled or call a closure several times, or the Run is of an older "
            "version"
            if has_optimizer
            else "no update of an optimizer was seen",
            reason="no-data" if has_optimizer else "not-recorded",
        )
    return SampledUpdates(tuple(slices), num_held, outside, tuple(optimizers), tuple(copies), tuple(unheld), frozen)


def slices_of(key: tuple[int, int], facts: Mapping[str, Any], values: np.ndarray | Sequence[float]) -> Iterator[Slice]:
    """The slices of one sample; elements of a format that is not known are left out."""
    feed = _Feed(np.asarray(values, dtype=np.float64))
    roles, groups = facts["roles"], {int(number): group for number, group in facts["groups"].items()}
    entries = cast(Sequence[Mapping[str, Any]], facts["slices"])
    before = [feed.take(roles[entry["before"]]) for entry in entries]
    extra = {name: float(feed.next(1)[0]) for name in facts["extra"]}
    # Values lie in the order before, extra, copies, aside, after (``laws/optimizer/probe/updates.py``).
    feed.next(_num_copied(facts) + sum(num for _, num, *_ in facts.get("aside", ())))
    after = [feed.take(roles[entry["after"]]) for entry in entries]
    for entry, (old, old_numbers), (new, new_numbers) in zip(entries, before, after, strict=True):
        dtypes = {name: dtype for name, dtype, _ in (*roles[entry["after"]], *roles[entry["before"]])}
        arrays = {name: dtype for name, dtype in dtypes.items() if name in old or name in new}
        if PARAM not in old or any(dtype not in FORMATS for dtype in arrays.values()):
            continue
        scale = extra.get("grad_scale", 1.0)
        # A fused update unscales gradients itself, behind the sample: what the law takes is the unscaled one.
        if GRAD in old and scale != 1.0:
            old[GRAD] = old[GRAD] / scale
        yield Slice(
            *key,
            name=entry["name"] or f"parameter {entry['at']} of the optimizer",
            optimizer=facts["optimizer"],
            law=facts["law"],
            settings=_settings(groups[entry["group"]], entry["group"], extra),
            before=old,
            after=new,
            numbers_before=old_numbers | _numbers(entry, "before_"),
            numbers_after=new_numbers | _numbers(entry, "after_"),
            dtypes=arrays,
            numel=entry["numel"],
            has_gradient=entry["grad"],
            trains=entry["trains"],
            is_own=bool(entry["name"]),
            skipped=extra.get("found_inf", 0.0) != 0.0,
            shape=tuple(entry.get("shape", ())),
            start=entry["start"],
            optimizer_number=facts.get("made", 0),
        )


def _copy_pairs(key: tuple[int, int], facts: Mapping[str, Any], values: np.ndarray) -> Iterator[CopyPair]:
    """The copies of one sample: they follow what was there before the update."""
    feed = _Feed(values)
    feed.next(_num_before(facts))
    for name, num, dtype, certain in facts.get("copies", ()):
        working, master = feed.next(num), feed.next(num)
        if dtype in FORMATS:
            yield CopyPair(*key, name, dtype, working, master, certain)


def _unheld_samples(key: tuple[int, int], facts: Mapping[str, Any], values: np.ndarray) -> Iterator[UnheldSample]:
    """Parameters outside of the optimizer in one sample: they follow the copies."""
    feed = _Feed(np.asarray(values, dtype=np.float64))
    feed.next(_num_before(facts) + _num_copied(facts))
    for name, num, version, trains in facts.get("aside", ()):
        yield UnheldSample(*key, name, feed.next(num), version, trains)


def _num_before(facts: Mapping[str, Any]) -> int:
    roles = facts["roles"]
    return sum(num for entry in facts["slices"] for _, _, num in roles[entry["before"]]) + len(facts["extra"])


def _num_copied(facts: Mapping[str, Any]) -> int:
    return sum(2 * num for _, num, *_ in facts.get("copies", ()))


class _Feed:
    """Gives values one after the other."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self._at = values, 0

    def next(self, num: int) -> Array:
        """The next ``num``."""
        self._at += num
        return self._values[self._at - num : self._at]

    def take(self, roles: Sequence[Sequence[Any]]) -> tuple[dict[str, Array], dict[str, float]]:
        """Arrays by name, and single numbers."""
        arrays: dict[str, Array] = {}
        numbers: dict[str, float] = {}
        for name, _, num in roles:
            part = self.next(num)
            if name in _NUMBERS:
                numbers[name] = float(part[0])
            else:
                arrays[name] = part
        return arrays, numbers


def _numbers(entry: Mapping[str, Any], begin: str) -> dict[str, float]:
    return {key.removeprefix(begin): value for key, value in entry.items() if key.startswith(begin)}


def _settings(group: Mapping[str, Any], number: int, extra: Mapping[str, float]) -> dict[str, Any]:
    """The hyper-parameters, with those that were read from the device."""
    from_device = {key.partition(".")[2]: value for key, value in extra.items() if key.startswith(f"{number}.")}
    return {**group, **from_device}


def finite_numbers(settings: Mapping[str, Any], *names: str) -> bool:
    """True if these settings are finite numbers, or lists of them."""
    numbers = [number for name in names for number in _as_list(settings.get(name, 0.0))]
    return all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers)


def _as_list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else [value]
