"""What one arm has of a step beside the reference: its weights, samples, outputs of modules and gradients, by name.

Names are what all layouts of a job share: the calls between, and what ranks send each other, are of the layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from trueline.comparison.arrange import arrange
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser
from trueline.comparison.judgement.history.loss_gap import Curve, loss_curve
from trueline.comparison.judgement.values.distance import MAX_BYTES
from trueline.comparison.judgement.values.measured_distance import measure_with
from trueline.comparison.match.align import Pair
from trueline.comparison.match.names import plain_name
from trueline.judge.recorded.step_values import Value
from trueline.schema.errors import AlignmentError, CannotTell
from trueline.store.reader import Run

Kind = Literal["weight", "input", "output", "gradient"]
KINDS: Mapping[tuple[str, str], Kind] = {
    ("param", "param"): "weight",
    ("fwd", "module"): "output",
    ("grad", "param"): "gradient",
}
"""What values are by phase and kind: a gradient is that which the optimizer takes."""
_REPLICAS_DIFFER = "replicas differ"


@dataclass(frozen=True)
class NamedDifference:
    """A value of an arm and its twin of the reference. ``rel`` is their relative L2 difference, inf where one alone is
    not finite, None where they were not compared (``note`` says why); ``ratio`` that of their norms. ``unit`` is the
    rounding of their dtype, ``position`` the index in the order of execution.
    """

    kind: Kind
    name: str
    module_class: str
    position: int
    rel: float | None
    unit: float
    ratio: float | None = None
    note: str = ""

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

    def of_kind(self, kind: Kind) -> list[NamedDifference]:
        """The differences of a kind."""
        return [difference for difference in self.differences if difference.kind == kind]


def measure_step(arm: ArmRuns, ref: ArmRuns, step: int) -> MeasuredStep:
    """Measure a step of all Runs of ``arm`` beside all of ``ref``, with ranks and micro-batches merged."""
    worst: dict[tuple[Kind, str], NamedDifference] = {}
    missing: dict[tuple[Kind, str], str] = {}
    whys: list[str] = []
    for run, ref_run in ((run, ref_run) for run in arm.runs for ref_run in ref.runs):
        try:
            for arrangement in arrange(run, ref_run, steps=[step]):
                for difference in _differences(arrangement.read().pairs, arrangement.rank):
                    known = worst.get(difference.key)
                    if difference.rel is None:
                        missing.setdefault(difference.key, difference.note)
                    elif known is None or known.rel is None or difference.rel > known.rel:
                        worst[difference.key] = difference
        except (AlignmentError, CannotTell) as error:
            whys.append(str(error))
    return MeasuredStep(
        sorted(worst.values(), key=lambda difference: difference.position),
        {key: why for key, why in missing.items() if key not in worst},
        "" if worst else next(iter(whys), "no value has the same name"),
    )


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
        yield NamedDifference(*head, rel, unit, _ratio(pair.mine, pair.theirs), note)


def _kind(value: Value) -> Kind | None:
    if value.site.phase == "fwd" and value.kind == "module" and not value.returned:
        return "input"
    if value.kind == "module" and value.dtype not in UNIT_ROUNDOFF:
        return None
    return KINDS.get((value.site.phase, value.kind))


def _ratio(value: Value, twin: Value) -> float | None:
    if value.stats is None or twin.stats is None or not twin.stats.norm:
        return None
    return value.stats.norm / twin.stats.norm
