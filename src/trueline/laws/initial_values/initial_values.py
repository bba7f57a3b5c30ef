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

from trueline.laws.initial_values.columns import NUM_FIELDS, InitialValues
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEWEST_ELEMENTS = 256
FEWEST_PEERS, FEWEST_IN_A_TREND = 4, 6
"""Layers of which one can be odd: where their spread is the same, and where it follows their number."""
ODD_SHARE = 0.25
"""Largest share of the layers that can be odd."""
ODD_FACTOR, ODD_ERRORS = 1.25, 8.0
"""Distance of the spread of an odd layer, as a factor and in standard errors of sampling: at least both."""
ALIKE, ALIKE_ERRORS = 0.02, 4.0
"""Distance that the spread of the others may have, relatively and in standard errors: the larger."""
ODD_KURTOSIS, ALIKE_KURTOSIS = 0.5, 0.1
"""Distances of the kurtosis that is odd, and that is alike: a uniform distribution is 1.2 below a normal one."""
ALIKE_KURTOSIS_ERRORS = 6.0
"""In these of a normal distribution's: of a few hundred values the kurtosis has a long upper tail."""
NORMAL, UNIFORM = 3.0, 1.8
"""The kurtosis of what initial values are drawn from is between these."""
HUGE = 1e10
"""Magnitude that no weight has."""
DEFAULT_SHARE = 0.2
"""Largest share of the matrices that have the values of torch's own layers where that is told."""
FRESH_SHARE, FEWEST_FRESH, FRESH_ELEMENTS = 0.9, 4, 1024
"""Smallest share and number of matrices that look drawn in a fresh model, of those with so many elements looked at."""


@dataclass(frozen=True)
class InitialParams:
    """The parameters of one rank before the first update, in the order of its ``names``: [P] each."""

    rank: int
    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    values: Sequence[InitialValues]

    def items(self) -> Iterator[tuple[str, InitialValues]]:
        """Names and values, in their order."""
        return zip(self.names, self.values, strict=True)

    def matrices(self) -> Iterator[tuple[int, tuple[int, ...], InitialValues]]:
        """(position, shape, value) of what has two dims of more than one element, and different values."""
        for position, (shape, value) in enumerate(zip(self.shapes, self.values, strict=True)):
            if sum(size > 1 for size in shape) > 1 and is_drawn(value):
                yield position, shape, value


@dataclass(frozen=True)
class OddMatrix:
    """A parameter unlike its ``num_peers``, those of the same role in other layers.

    ``spread`` and ``kurtosis`` are what is to be expected of it: one number of the peers or what a trend over the
    layers gives. ``layer`` is the name up to the layer's number; ``at_end`` says that no layer that is alike comes
    before it, or none after it, and ``spaced`` that odd layers come at equal distances.
    """

    name: str
    layer: str
    value: InitialValues
    spread: float
    kurtosis: float
    num_peers: int
    at_end: bool
    spaced: bool

    @property
    def kind(self) -> Literal["constant", "spread", "law"]:
        """The statistic that is odd, first of all."""
        if not is_drawn(self.value):
            return "constant"
        return "spread" if abs(math.log(self.value.spread / self.spread)) > math.log(ODD_FACTOR) else "law"


def initial_params(run: Run) -> list[InitialParams]:
    """Parameters that each rank began with; raises ``CannotTell`` where they are not known, or training had begun
    before.
    """
    rows = run.lists("initial_values")
    if not rows:
        raise CannotTell("no initial values were seen", reason="no-data")
    attempts = run.manifest.attempts
    if min(step for step, _ in rows) > 0 or (attempts and attempts[0].updates):
        raise CannotTell("training had begun before it was watched", reason="by-design")
    return [
        _params_of_rank(run, rank, np.asarray(row, dtype=np.float64))
        for (step, rank), row in sorted(rows.items())
        if step == 0 and rank in run.env
    ]


def _params_of_rank(run: Run, rank: int, row: Array) -> InitialParams:
    env = run.env[rank]
    lists = env.lists[0] if env.lists else env  # the first of a model that changed later
    values = [InitialValues(*fields) for fields in row.reshape(-1, NUM_FIELDS).tolist()]
    return InitialParams(rank, lists.params, [tuple(shape) for shape in lists.param_shapes], values)


def is_drawn(value: InitialValues) -> bool:
    """True if there are different values, beyond the rounding of their mean."""
    return value.looked > 1 and value.spread > 1e-12 * value.largest


def look_fresh(params: InitialParams) -> bool:
    """True if the matrices look drawn at random and not yet trained: a mean of zero and a kurtosis between those of a
    uniform and a normal distribution, within the sampling error. Training gives most of them longer tails.
    """
    fresh = [
        is_fresh(value)
        for _, _, value in params.matrices()
        if value.looked >= FRESH_ELEMENTS and not value.nonfinite and not _has_odd_numbers(value)
    ]
    return len(fresh) >= FEWEST_FRESH and sum(fresh) >= FRESH_SHARE * len(fresh)


def is_fresh(value: InitialValues) -> bool:
    """True for a mean of zero and a kurtosis between those of a uniform and a normal distribution."""
    centred = abs(value.mean) <= 5 * value.spread / math.sqrt(value.looked)
    error = math.sqrt(24 / value.looked)  # of the kurtosis of a normal distribution
    return centred and UNIFORM - 5 * error <= value.kurtosis <= NORMAL + 5 * error


def is_garbage(value: InitialValues, params: InitialParams) -> bool:
    """True if nothing has filled it: no weight is as large, and none that was drawn as small. Weights that were trained
    and decayed may be.
    """
    return value.largest > HUGE or (_has_odd_numbers(value) and look_fresh(params))


def _has_odd_numbers(value: InitialValues) -> bool:
    return value.largest > HUGE or value.subnormal > 0


def torch_defaults(params: InitialParams) -> list[str]:
    """The matrices that have the values with which torch makes its linear and convolutional layers, uniform between
    plus and minus 1/sqrt(fan in) (``kaiming_uniform_`` with a=sqrt(5)), where most others have not.
    """
    matrices = [matrix for matrix in params.matrices() if matrix[2].looked >= FRESH_ELEMENTS]
    defaults = [params.names[position] for position, shape, value in matrices if _is_default(shape, value)]
    return defaults if len(defaults) <= DEFAULT_SHARE * len(matrices) else []


def _is_default(shape: tuple[int, ...], value: InitialValues) -> bool:
    # The standard deviation of a uniform distribution is its bound over sqrt(3), and the bound 1/sqrt(fan in).
    factor = value.spread * math.sqrt(3 * math.prod(shape[1:]))
    errors = math.sqrt((UNIFORM - 1) / (4 * value.looked))
    uniform = abs(value.kurtosis - UNIFORM) <= 5 * math.sqrt(24 / value.looked)
    return uniform and abs(math.log(factor)) <= 5 * errors


def matrices_by_role(params: InitialParams) -> dict[tuple[Any, ...], dict[int, int]]:
    """Positions of the matrices by their layer's number, of each role that four layers and more have: the name without
    one number in it, and the shape.
    """
    by_role: defaultdict[tuple[Any, ...], dict[int, int]] = defaultdict(dict)
    for position, (name, shape) in enumerate(zip(params.names, params.shapes, strict=True)):
        parts = name.split(".")
        if sum(size > 1 for size in shape) < 2 or params.values[position].looked < FEWEST_ELEMENTS:
            continue
        for i, part in enumerate(parts):
            if part.isdigit():
                by_role[".".join(parts[:i]), ".".join(parts[i + 1 :]), shape][int(part)] = position
    return {role: dict(sorted(layers.items())) for role, layers in by_role.items() if len(layers) >= FEWEST_PEERS}


def odd_matrices(params: InitialParams) -> list[OddMatrix]:
    """The matrices that are unlike their peers, in the order of the model; each once."""
    by_name: dict[str, OddMatrix] = {}
    # A name with two numbers has two roles, such as of an expert among layers and among experts.
    for (prefix, _, _), layers in matrices_by_role(params).items():
        for odd in _odd_of_role(params, prefix, layers):
            by_name.setdefault(odd.name, odd)
    return sorted(by_name.values(), key=lambda odd: params.names.index(odd.name))


def _odd_of_role(params: InitialParams, prefix: str, layers: Mapping[int, int]) -> list[OddMatrix]:
    """Odd ones of a role, whose positions are given by the number of their layer."""
    numbers, values = list(layers), [params.values[position] for position in layers.values()]
    comparison = _compare_peers(np.array(numbers, dtype=np.float64), values)
    if comparison is None:
        return []
    is_odd, spread, kurtosis = comparison
    distances = set(np.diff(np.flatnonzero(is_odd)).tolist())
    first, last = int(np.argmin(is_odd)), len(is_odd) - 1 - int(np.argmin(is_odd[::-1]))  # of those that are alike
    return [
        OddMatrix(
            name=params.names[layers[number]],
            layer=f"{prefix}.{number}" if prefix else str(number),
            value=values[i],
            spread=float(spread[i]),
            kurtosis=kurtosis,
            num_peers=int((~is_odd).sum()),
            at_end=i < first or i > last,
            spaced=len(distances) == 1 and distances != {1},
        )
        for i, number in enumerate(numbers)
        if is_odd[i]
    ]


def _compare_peers(numbers: Array, values: Sequence[InitialValues]) -> tuple[Flags, Array, float] | None:
    """Flags of the peers that are odd, the spread that was to be expected of each, and the kurtosis; None where none
    is, or the others are not alike either. ``numbers`` are those of their layers.
    """
    drawn = np.array([is_drawn(value) for value in values])
    if drawn.sum() < (1 - ODD_SHARE) * len(values):
        return None
    num_elements = np.array([value.looked for value in values])
    kurtosis = np.where(drawn, [value.kurtosis for value in values], np.nan)
    logs = np.log(np.where(drawn, [value.spread for value in values], np.nan))
    # Of the logarithm of a standard deviation, by the delta method; the kurtosis is kept from its minimum of 1.
    errors = np.sqrt(np.maximum(kurtosis - 1, 0.2) / (4 * num_elements))
    usual = float(np.nanmedian(kurtosis))
    other_law = ~(np.abs(kurtosis - usual) <= np.maximum(ODD_KURTOSIS, ODD_ERRORS * np.sqrt(24 / num_elements)))
    same_law = np.abs(kurtosis - usual) <= np.maximum(
        ALIKE_KURTOSIS, ALIKE_KURTOSIS_ERRORS * np.sqrt(24 / num_elements)
    )
    for expected in _expectations(numbers, logs, drawn & ~other_law):
        distance = np.abs(logs - expected)
        odd = other_law | (distance > np.maximum(math.log(ODD_FACTOR), ODD_ERRORS * errors))
        alike = same_law & (distance <= np.maximum(ALIKE, ALIKE_ERRORS * errors))
        if not (alike | odd).all() or odd.sum() > ODD_SHARE * len(odd):
            continue
        return (odd, np.exp(expected), usual) if odd.any() else None
    return None


def _expectations(numbers: Array, logs: Array, drawn: Flags) -> list[Array]:
    """Logarithms of the spread: the same for all; and where there are enough, by a power of the layer's number, as the
    others have it without each one in turn.
    """
    expectations = [np.full(len(logs), float(np.median(logs[drawn])))] if drawn.any() else []
    if drawn.sum() < FEWEST_IN_A_TREND:
        return expectations
    terms = np.stack([np.ones(len(logs)), np.log1p(numbers)], axis=1)
    for omitted in [None, *range(len(logs))]:
        fitted = drawn.copy()
        if omitted is not None:
            fitted[omitted] = False
        if fitted.sum() >= FEWEST_IN_A_TREND - 1:
            expectations.append(terms @ np.linalg.lstsq(terms[fitted], logs[fitted], rcond=None)[0])
    return expectations
