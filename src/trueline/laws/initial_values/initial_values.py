"""Parameters before the first update: whether they were just drawn, and which are unlike those of the same role in the
layers beside theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueline.schema.columns.initial_values import NUM_FIELDS, InitialValues
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEWEST_ELEMENTS = 256
FEWEST_PEERS, FEWEST_IN_A_TREND = 4, 6
"""Layers of which one can be odd: where their spread is the same, and where it follows their number."""
ODD_SHARE = 0.25
"""Of the layers at most so many can be odd."""
ODD_FACTOR, ODD_ERRORS = 1.25, 8.0
"""How far the spread of an odd one is off, as a factor and in standard errors of sampling: at least both."""
ALIKE, ALIKE_ERRORS = 0.02, 4.0
"""How far the spread of the others may be off, relatively and in standard errors: the larger."""
ODD_KURTOSIS, ALIKE_KURTOSIS = 0.5, 0.1
"""The same of the kurtosis: a uniform distribution is 1.2 below a normal one."""
ALIKE_KURTOSIS_ERRORS = 6.0
"""In these of a normal distribution's: of a few hundred values the kurtosis has a long upper tail."""
NORMAL, UNIFORM = 3.0, 1.8
"""The kurtosis of what initial values are drawn from is between these."""
HUGE = 1e10
"""Magnitude that no weight has."""
LEFT_SHARE = 0.2
"""Of the matrices at most so many have the values of torch's own layers where that may be told."""
FRESH_SHARE, FEWEST_FRESH, FRESH_ELEMENTS = 0.9, 4, 1024
"""Of the matrices with so many elements that are looked at, how many, and which share, look drawn in a model that does.
"""


@dataclass(frozen=True)
class Begun:
    """The parameters of one rank before the first update, in the order of its ``names``: [P] each."""

    rank: int
    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    values: Sequence[InitialValues]

    def named(self) -> Iterator[tuple[str, InitialValues]]:
        """Names and values."""
        return zip(self.names, self.values, strict=True)

    def matrices(self) -> Iterator[tuple[int, tuple[int, ...], InitialValues]]:
        """(place, shape, value) of what has two dims of more than one element, and different values."""
        for place, (shape, value) in enumerate(zip(self.shapes, self.values, strict=True)):
            if sum(size > 1 for size in shape) > 1 and is_drawn(value):
                yield place, shape, value


@dataclass(frozen=True)
class Odd:
    """A parameter unlike its ``peers``, those of the same role in other layers, whose ``spread`` and ``kurtosis`` are
    what is to be expected of it: one number of them or what a trend over the layers gives. ``layer`` is the name up to
    the layer's number; ``at_end`` says that no layer that is alike comes before it, or none after it, and ``spaced``
    that odd layers come at equal distances.
    """

    name: str
    layer: str
    value: InitialValues
    spread: float
    kurtosis: float
    peers: int
    at_end: bool
    spaced: bool

    @property
    def kind(self) -> Literal["constant", "spread", "law"]:
        """What is odd first of all."""
        if not is_drawn(self.value):
            return "constant"
        return "spread" if abs(math.log(self.value.spread / self.spread)) > math.log(ODD_FACTOR) else "law"


def begun(run: Run) -> list[Begun]:
    """What each rank began with; raises ``CannotTell`` where it is not known, or training had begun before."""
    found = run.lists("initial_values")
    if not found:
        raise CannotTell("no initial values were seen", reason="no-data")
    attempts = run.manifest.attempts
    if min(step for step, _ in found) > 0 or (attempts and attempts[0].updates):
        raise CannotTell("training had begun before it was watched", reason="by-design")
    return [
        _of_rank(run, rank, np.asarray(values, dtype=np.float64))
        for (step, rank), values in sorted(found.items())
        if step == 0 and rank in run.env
    ]


def _of_rank(run: Run, rank: int, values: Array) -> Begun:
    env = run.env[rank]
    lists = env.lists[0] if env.lists else env
    each = [InitialValues(*row) for row in values.reshape(-1, NUM_FIELDS).tolist()]
    return Begun(rank, lists.params, [tuple(shape) for shape in lists.param_shapes], each)


def is_drawn(value: InitialValues) -> bool:
    """Whether there are different values, beyond the rounding of their mean."""
    return value.looked > 1 and value.spread > 1e-12 * value.largest


def are_drawn_anew(begun: Begun) -> bool:
    """Whether the matrices look drawn at random and not yet trained: a mean of zero and a kurtosis between those of a
    uniform and a normal distribution, within the sampling error. Training gives most of them longer tails.
    """
    fresh = [
        _is_fresh(value)
        for _, _, value in begun.matrices()
        if value.looked >= FRESH_ELEMENTS and not value.nonfinite and not _is_odd_memory(value)
    ]
    return len(fresh) >= FEWEST_FRESH and sum(fresh) >= FRESH_SHARE * len(fresh)


def _is_fresh(value: InitialValues) -> bool:
    centred = abs(value.mean) <= 5 * value.spread / math.sqrt(value.looked)
    error = math.sqrt(24 / value.looked)  # of the kurtosis of a normal distribution
    return centred and UNIFORM - 5 * error <= value.kurtosis <= NORMAL + 5 * error


def is_garbage(value: InitialValues, begun: Begun) -> bool:
    """Whether nothing has filled it: no weight is as large, and none that was drawn as small. Weights that were trained
    and decayed may be.
    """
    return value.largest > HUGE or (_is_odd_memory(value) and are_drawn_anew(begun))


def _is_odd_memory(value: InitialValues) -> bool:
    return value.largest > HUGE or value.subnormal > 0


def left_as_made(begun: Begun) -> list[str]:
    """The matrices that have the values with which torch makes its linear and convolutional layers, uniform between
    plus and minus 1/sqrt(fan in) (``kaiming_uniform_`` with a=sqrt(5)), where most others have not.
    """
    drawn = [one for one in begun.matrices() if one[2].looked >= FRESH_ELEMENTS]
    left = [begun.names[place] for place, shape, value in drawn if _is_default(shape, value)]
    return left if len(left) <= LEFT_SHARE * len(drawn) else []


def _is_default(shape: tuple[int, ...], value: InitialValues) -> bool:
    factor = value.spread * math.sqrt(3 * math.prod(shape[1:]))
    errors = math.sqrt((UNIFORM - 1) / (4 * value.looked))
    uniform = abs(value.kurtosis - UNIFORM) <= 5 * math.sqrt(24 / value.looked)
    return uniform and abs(math.log(factor)) <= 5 * errors


def by_role(begun: Begun) -> dict[tuple[Any, ...], dict[int, int]]:
    """Places of the matrices by their number, of each role that four layers and more have: the name without one number
    in it, and the shape.
    """
    found: defaultdict[tuple[Any, ...], dict[int, int]] = defaultdict(dict)
    for place, (name, shape) in enumerate(zip(begun.names, begun.shapes, strict=True)):
        parts = name.split(".")
        if sum(size > 1 for size in shape) < 2 or begun.values[place].looked < FEWEST_ELEMENTS:
            continue
        for at, part in enumerate(parts):
            if part.isdigit():
                found[".".join(parts[:at]), ".".join(parts[at + 1 :]), shape][int(part)] = place
    return {role: dict(sorted(members.items())) for role, members in found.items() if len(members) >= FEWEST_PEERS}


def odd_ones(begun: Begun) -> list[Odd]:
    """The matrices that are unlike their peers, in the order of the model; each once."""
    found: dict[str, Odd] = {}
    for (prefix, _, _), members in by_role(begun).items():
        for odd in _odd_of(begun, prefix, members):
            found.setdefault(odd.name, odd)
    return sorted(found.values(), key=lambda odd: begun.names.index(odd.name))


def _odd_of(begun: Begun, prefix: str, members: Mapping[int, int]) -> list[Odd]:
    numbers, values = list(members), [begun.values[place] for place in members.values()]
    judged = _off(np.array(numbers, dtype=np.float64), values)
    if judged is None:
        return []
    off, spread, kurtosis = judged
    places = np.flatnonzero(off)
    apart = set(np.diff(places).tolist())
    first, last = int(np.argmin(off)), len(off) - 1 - int(np.argmin(off[::-1]))  # of those that are alike
    return [
        Odd(
            name=begun.names[members[number]],
            layer=f"{prefix}.{number}" if prefix else str(number),
            value=values[place],
            spread=float(spread[place]),
            kurtosis=kurtosis,
            peers=int((~off).sum()),
            at_end=place < first or place > last,
            spaced=len(apart) == 1 and apart != {1},
        )
        for place, number in enumerate(numbers)
        if off[place]
    ]


def _off(numbers: Array, values: Sequence[InitialValues]) -> tuple[Flags, Array, float] | None:
    """Which of the peers are odd, the spread that was to be expected of each, and the kurtosis; None where none is, or
    the others are not alike either.
    """
    drawn = np.array([is_drawn(value) for value in values])
    if drawn.sum() < (1 - ODD_SHARE) * len(values):
        return None
    looked = np.array([value.looked for value in values])
    kurtosis = np.array([value.kurtosis if each else np.nan for value, each in zip(values, drawn, strict=True)])
    logs = np.log([value.spread if each else np.nan for value, each in zip(values, drawn, strict=True)])
    errors = np.sqrt(np.maximum(kurtosis - 1, 0.2) / (4 * looked))
    usual = float(np.nanmedian(kurtosis))
    other_law = ~(np.abs(kurtosis - usual) <= np.maximum(ODD_KURTOSIS, ODD_ERRORS * np.sqrt(24 / looked)))
    same_law = np.abs(kurtosis - usual) <= np.maximum(ALIKE_KURTOSIS, ALIKE_KURTOSIS_ERRORS * np.sqrt(24 / looked))
    for expected in _expectations(numbers, logs, drawn & ~other_law):
        away = np.abs(logs - expected)
        off = other_law | (away > np.maximum(math.log(ODD_FACTOR), ODD_ERRORS * errors))
        alike = same_law & (away <= np.maximum(ALIKE, ALIKE_ERRORS * errors))
        if not (alike | off).all() or off.sum() > ODD_SHARE * len(off):
            continue
        return (off, np.exp(expected), usual) if off.any() else None
    return None


def _expectations(numbers: Array, logs: Array, drawn: Flags) -> list[Array]:
    """Logarithms of the spread: the same for all; and where there are enough, by a power of the layer's number, as the
    others have it without each one in turn.
    """
    same = [np.full(len(logs), float(np.median(logs[drawn])))] if drawn.any() else []
    if drawn.sum() < FEWEST_IN_A_TREND:
        return same
    terms = np.stack([np.ones(len(logs)), np.log1p(numbers)], axis=1)
    for left_out in [None, *range(len(logs))]:
        others = drawn.copy()
        if left_out is not None:
            others[left_out] = False
        if others.sum() >= FEWEST_IN_A_TREND - 1:
            same.append(terms @ np.linalg.lstsq(terms[others], logs[others], rcond=None)[0])
    return same
