"""What one arm has of a step beside the reference: its weights, samples, outputs of modules and gradients, by name.

Names are what all layouts of a job share: the calls between, and what ranks send each other, are of the layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.arrange import arrange
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser
from trueline.comparison.judgement.history.loss_gap import Curve, loss_curve
from trueline.comparison.judgement.values.distance import MAX_BYTES
from trueline.comparison.judgement.values.measured_distance import measure_with
from trueline.comparison.match.align import Pair
from trueline.comparison.match.names import plain_name
from trueline.judge.recorded.step_values import Value
from trueline.schema.errors import AlignmentError, CannotTell
from trueline.schema.text.words import listed, ranks_text
from trueline.store.reader import Run

Kind = Literal["weight", "input", "output", "raw gradient", "gradient"]
KINDS: Mapping[tuple[str, str], Kind] = {
    ("param", "param"): "weight",
    ("fwd", "module"): "output",
    ("bwd", "param"): "raw gradient",
    ("grad", "param"): "gradient",
}
"""What values are by phase and kind: a gradient is what the optimizer takes, a raw one what a backward pass leaves."""
_REPLICAS_DIFFER = "replicas differ"
_SAME_RATIO = 1e-5
"""Share by which norms of one gradient may differ in groups of ranks: sums of float32 in another order."""


@dataclass(frozen=True)
class NamedDifference:
    """A value of an arm and its twin of the reference. ``rel`` is their relative L2 difference, inf where one alone is
    not finite, None where they were not compared (``note`` says why); ``ratio`` that of their norms. ``unit`` is the
    rounding of their dtype, ``position`` the index in the order of execution, ``ranks`` those of the arm that have it.
    ``rest`` is what is left of it without a factor, or one a rank for the pieces that ranks hold; None: not measured.
    """

    kind: Kind
    name: str
    module_class: str
    position: int
    rel: float | None
    unit: float
    ratio: float | None = None
    note: str = ""
    ranks: tuple[int, ...] = ()
    rest: float | None = None

    @property
    def key(self) -> tuple[Kind, str]:
        """What it is known by in every arm."""
        return self.kind, self.name

    @property
    def replicas_differ(self) -> str:
        """Which ranks have it otherwise than others, as a note; '' where none have."""
        return self.note if self.note.startswith(_REPLICAS_DIFFER) else ""


@dataclass(frozen=True)
class ArmRuns:
    """What an arm left: a Run, and one beside it for each further group of ranks that holds another part."""

    runs: Sequence[Run]

    @classmethod
    def opened(cls, path: Path) -> ArmRuns:
        """Raises ``RunError`` where there is no Run at ``path``."""
        beside = sorted(path.parent.glob(f"{path.name}.ranks-*"))
        return cls([Run(piece) for piece in (path, *beside)])

    @cached_property
    def steps(self) -> Sequence[int]:
        """Steps whose values were recorded."""
        return [int(step) for step in self.runs[0].record_steps]

    @cached_property
    def num_ranks(self) -> int:
        """Ranks of the job."""
        return self.runs[0].world_size

    @cached_property
    def losses(self) -> Curve:
        """The mean loss by step, of all Runs that have any: a stage of a pipeline has none."""
        curves = [curve for run in self.runs if (curve := loss_curve(run))]
        common = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
        return {step: sum(curve[step] for curve in curves) / len(curves) for step in common}

    @cached_property
    def has_loss(self) -> bool:
        """True if a loss was seen, finite or not."""
        return any(loss is not None for run in self.runs for loss in run.column("loss").to_pylist())

    def samples(self, step: int) -> frozenset[int]:
        """Digests of the samples of ``step`` on all ranks."""
        digests: set[int] = set()
        for run in self.runs:
            for values in run.lists("sample_digests", steps=[step]).values():
                digests |= set(np.asarray(values).tolist())
        return frozenset(digests)


@dataclass(frozen=True)
class MeasuredStep:
    """One step of an arm beside the reference: the worst difference of every name, in the order of execution, and of
    names that were not compared why, with ``why_not`` where nothing was.
    """

    differences: Sequence[NamedDifference] = ()
    not_compared: Mapping[tuple[Kind, str], str] = field(default_factory=dict[tuple[Kind, str], str])
    why_not: str = ""

    @property
    def gradients(self) -> list[NamedDifference]:
        """Those that the optimizer takes; of an update by a closure what the backward pass leaves."""
        return self.of_kind("gradient") or self.of_kind("raw gradient")

    def of_kind(self, kind: Kind) -> list[NamedDifference]:
        """The differences of a kind."""
        return [difference for difference in self.differences if difference.kind == kind]


def measure_step(arm: ArmRuns, ref: ArmRuns, step: int) -> MeasuredStep:
    """Measure a step of all Runs of ``arm`` beside all of ``ref``, with ranks and micro-batches merged."""
    worst: dict[tuple[Kind, str], NamedDifference] = {}
    missing: dict[tuple[Kind, str], str] = {}
    whys: list[str] = []
    by_group: dict[tuple[Kind, str], list[NamedDifference]] = {}
    for run, ref_run in ((run, ref_run) for run in arm.runs for ref_run in ref.runs):
        try:
            for arrangement in arrange(run, ref_run, steps=[step]):
                for difference in _differences(arrangement.read().pairs, arrangement.rank):
                    known = worst.get(difference.key)
                    if difference.rel is None:
                        missing.setdefault(difference.key, difference.note)
                        continue
                    by_group.setdefault(difference.key, []).append(difference)
                    if known is None or known.rel is None or difference.rel > known.rel:
                        worst[difference.key] = difference
        except (AlignmentError, CannotTell) as error:
            whys.append(str(error))
    if len(arm.runs) > 1 and len(ref.runs) == 1:
        worst = {key: _between_groups(difference, by_group[key]) for key, difference in worst.items()}
    return MeasuredStep(
        sorted(worst.values(), key=lambda difference: difference.position),
        {key: why for key, why in missing.items() if key not in worst},
        "" if worst else next(iter(whys), "no value has the same name"),
    )


def _between_groups(difference: NamedDifference, by_group: Sequence[NamedDifference]) -> NamedDifference:
    """``difference``, with a note where groups of ranks with Runs of their own have other values of one name."""
    ratios = [group.ratio for group in by_group if group.ratio is not None]
    if len(ratios) < 2 or max(ratios) - min(ratios) <= _SAME_RATIO * max(ratios):
        return difference
    groups = [ranks_text(group.ranks) for group in by_group]
    return replace(difference, note=f"{_REPLICAS_DIFFER}: {groups[0]} from {listed(groups[1:])}")


def _differences(pairs: Sequence[Pair], rank: int | None) -> Iterator[NamedDifference]:
    measure = measure_with(MAX_BYTES)
    inputs_seen = False
    for position, pair in enumerate(pairs):
        value = pair.theirs or pair.mine
        assert value is not None
        kind = _kind(value)
        if kind == "input":
            if inputs_seen or pair.mine is None or pair.theirs is None:
                continue
            inputs_seen = True
        if kind is None or (pair.theirs is None and kind == "output"):
            continue
        # of several values that a module returns, the first goes by the name alone
        slot = "" if kind != "output" or value.site.slot == "out0" else f" {value.site.slot}"
        name = plain_name(value.site.name) + slot
        unit = UNIT_ROUNDOFF.get(value.dtype, 0.0)
        head = (kind, name, value.api.rpartition(".")[2], position)
        if pair.mine is None or pair.theirs is None:
            yield NamedDifference(*head, None, unit, note=pair.reason)
            continue
        distance = measure(pair.mine, pair.theirs)
        unit = UNIT_ROUNDOFF.get(coarser(pair.mine.dtype, pair.theirs.dtype), 0.0)
        rel = math.inf if distance.nonfinite_differ else distance.rel
        note = pair.mine.note or pair.theirs.note
        rest = _rest(pair.mine, pair.theirs, rel) if kind in ("gradient", "raw gradient") else None
        yield NamedDifference(*head, rel, unit, _ratio(pair.mine, pair.theirs), note, pair.mine.ranks, rest)


def _kind(value: Value) -> Kind | None:
    if value.site.phase == "fwd" and value.kind == "module" and not value.returned:
        return "input"
    if value.kind == "module" and value.dtype not in UNIT_ROUNDOFF:
        return None
    return KINDS.get((value.site.phase, value.kind))


def _ratio(value: Value, twin: Value) -> float | None:
    norm, ref_norm = _norm(value), _norm(twin)
    return norm / ref_norm if norm is not None and ref_norm else None


def _norm(value: Value) -> float | None:
    if value.stats is not None:
        return value.stats.norm
    return None if value.load is None else float(np.linalg.norm(np.asarray(value.load(), np.float64)))


def _rest(value: Value, twin: Value, rel: float | None) -> float | None:
    """What is left of the difference ``rel`` without the nearest multiple of ``twin``, of the whole or of equal pieces
    of as many ranks, over the norm of ``twin``; None where there is none, or nothing was stored.
    """
    if not rel or not math.isfinite(rel) or value.load is None or twin.load is None or value.shape != twin.shape:
        return None
    numbers, ref_numbers = (np.asarray(side.load(), np.float64) for side in (value, twin) if side.load is not None)
    norm = float(np.linalg.norm(ref_numbers))
    num_pieces = len(value.ranks)
    cuts = [(0, 1), *((axis, num_pieces) for axis, size in enumerate(value.shape) if size >= num_pieces)]
    if not value.shape or not norm:
        return None
    return min(
        _left_by_factors(np.array_split(numbers, pieces, axis), np.array_split(ref_numbers, pieces, axis)) / norm
        for axis, pieces in cuts
    )


def _left_by_factors(pieces: Sequence[NDArray[np.float64]], ref_pieces: Sequence[NDArray[np.float64]]) -> float:
    """The norm of what is left of ``pieces`` without the nearest multiple of each one's twin."""
    squares = 0.0
    for piece, ref_piece in zip(pieces, ref_pieces, strict=True):
        total = float(np.vdot(ref_piece, ref_piece))
        factor = float(np.vdot(ref_piece, piece)) / total if total else 0.0
        squares += float(np.linalg.norm(piece - factor * ref_piece)) ** 2
    return math.sqrt(squares)
