"""Judges each value of a step against its twin: equal, within rounding, beyond it, or different because its inputs are.

Values are judged in the order of execution of the side that recorded more: values without a twin still show how
differences are passed on. See ``expectation`` for what rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trueline.comparison.expect.expectation import Expectation
from trueline.comparison.expect.expected import Expected
from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import is_swamped
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.comparison.judgement.values.compared import COARSE_REL, LIMIT, Compared, times_expected
from trueline.comparison.judgement.values.distance import Distance
from trueline.comparison.judgement.values.excuses import Difference, excuse
from trueline.comparison.judgement.values.floors import floor_of
from trueline.comparison.judgement.values.multiple import CHANCE, SINGLE, chance_of_all, multiple_of
from trueline.comparison.judgement.values.one_sided_tensors import aliased_in_one, given_in_one, split_in_one
from trueline.comparison.match.align import Alignment
from trueline.comparison.match.fused_modules import PART
from trueline.comparison.merge.positions import UNORDERED
from trueline.comparison.op_names import RANDOM, function_of, op_class_of
from trueline.comparison.result import Judgement
from trueline.judge.recorded.step_values import CallKey, StepValues, Value, key_of, spot_of
from trueline.schema.files.tolerance import Tolerance

CARRIED = 1.5
"""Times the expected difference from which on one may come from inputs that the runs make in different ways; errors of
an op are rarely larger (``expect.ops.LAWS``)."""

MOVED = 2.0
"""Times the limit for what a call returns that only moves numbers, where statistics measure it: before and after it
three projections estimate one distance, and seem smaller than a sixth of it once in 160 values."""

ALIASED = "the gradient of a tensor that has more uses than in the other run"

LEFT_BY_UPDATE = "left by the updates before this step"

UNCERTAIN = 100.0
"""Unit roundoffs, relative to their size, by which gradients differ after a pass through a model."""

NOISE = 1e-5
"""Norm of a gradient, over the largest one of any parameter, below which it is what rounding left of 0, as that of a
bias of keys is.
"""

WRITERS = frozenset({"setitem", "copy", "fill", "zero", "index_copy", "index_put", "scatter", "masked_scatter"})
"""Functions whose first argument is written over, in whole or in part."""

_DRAWN = frozenset(name for name in RANDOM if "dropout" not in name and name not in ("rrelu", "gumbel_softmax"))
"""Functions whose result is random, whatever numbers they take."""

Measure = Callable[[Value, Value], Distance]


@dataclass(frozen=True, slots=True)
class _Outcome:
    judgement: Judgement
    distance: Distance | None
    expectation: Expectation
    note: str = ""
    rewired: bool = False


class Divergence:
    """All judgements of one aligned step.

    ``moved``: how far updates may have moved apart two elements of a parameter that were equal at first; parameters and
    optimizer state are then not judged. None at the first step that is compared, before any update. ``tainted``: at an
    earlier step there was a difference that rounding does not explain, so it need not explain those of parameters.
    ``same_update``: the update just before started from equal parameters and gradients, so that only its own rounding
    explains a difference of its results. ``multiples``: gradients that are multiples of their twins are beyond
    rounding, whatever that may explain (``has_multiples``).
    """

    def __init__(
        self,
        alignment: Alignment,
        *,
        measure: Measure,
        tolerance: Tolerance | None = None,
        moved: float | None = None,
        tainted: bool = False,
        same_update: bool = False,
        multiples: bool = False,
    ) -> None:
        self._measure = measure
        self._tolerance = tolerance
        self._moved = moved
        self._tainted = tainted
        self._retraced = same_update
        self._compiled = alignment.mine.compiled | alignment.theirs.compiled
        self._multiples = multiples
        self._chances: list[float] = []
        self._run_is_guide = len(alignment.mine.values) >= len(alignment.theirs.values)
        # The side that recorded more shows how differences are passed on through values without a twin.
        guide = alignment.mine if self._run_is_guide else alignment.theirs
        autocast = [side.autocast for side in alignment.sides if side.autocast]
        self.expected = Expected(
            guide,
            of_reference=not self._run_is_guide,
            autocast=max(autocast, key=UNIT_ROUNDOFF.__getitem__, default=""),
        )
        self._by_root: dict[tuple[int, int], _Outcome] = {}
        self._unmeasured: dict[int, Expectation] = {}
        """The expectation for values that had no twin so far, by root."""
        self._without_twin: set[int] = set()
        """Roots of values without a comparable twin."""
        self._incomparable_calls: set[CallKey] = set()
        """Calls that took such values, or different ones than in the reference: their results are not compared."""
        aliased = () if alignment.connects_alike else (*aliased_in_one(alignment), *split_in_one(alignment))
        self._given_in_one = given_in_one(alignment, of_run=self._run_is_guide)
        self._aliased = {spot_of(value if self._run_is_guide else twin) for value, twin in aliased}
        self.rows = list(self._run(guide, alignment))

    @property
    def has_multiples(self) -> bool:
        """True where gradients that rounding may explain are multiples of those of the reference. Those of
        parameters, and those behind calls that only one run makes, are independent of each other as far as rounding
        makes them; together they must be what it hardly makes (``multiple``).
        """
        return chance_of_all(self._chances) <= CHANCE

    def _run(self, guide: StepValues, alignment: Alignment) -> Iterator[Compared]:
        """Rows of the guide in its order; values that only the other side has follow at the end."""
        twins: dict[int, tuple[Value | None, str]] = {}
        alone: list[tuple[Value, str]] = []
        for run_value, ref_value, reason in alignment.pairs:
            guide_value, other_value = (run_value, ref_value) if self._run_is_guide else (ref_value, run_value)
            if guide_value is not None:
                twins[guide_value.index] = other_value, reason
            elif other_value is not None:
                alone.append((other_value, reason))
        # Parameters are listed where the update begins, and used before.
        for value in guide.values:
            if value.site.phase == "param" and (twin := twins[value.index][0]) is not None:
                self._judge(value, twin)
        for position, value in enumerate(guide.values):
            twin, reason = twins[value.index]
            outcome = None if twin is None else self._by_root.get((value.root, twin.root))
            if outcome is None or outcome.rewired:
                outcome = self._judge(value, twin)
            self.expected.seen(value)
            if outcome is None or outcome.judgement == "not-comparable":
                self._note_inputs(value)
            yield self._row(position, value, twin, outcome, reason)
        for position, (value, reason) in enumerate(alone, start=len(guide.values)):
            yield self._row(position, None, value, None, reason)

    def _row(
        self, position: int, value: Value | None, twin: Value | None, outcome: _Outcome | None, reason: str
    ) -> Compared:
        run_value, ref_value = (value, twin) if self._run_is_guide else (twin, value)
        root = None if value is None else value.root
        param = None if root is None else self.expected.param_of(root)
        if outcome is None or twin is None:
            return Compared(position, root, run_value, ref_value, "not-comparable", note=reason, param=param)
        judgement, distance, note = outcome.judgement, outcome.distance, outcome.note or reason
        return Compared(
            position, root, run_value, ref_value, judgement, distance, outcome.expectation, note, param, outcome.rewired
        )

    def _judge(self, value: Value, twin: Value | None) -> _Outcome | None:
        """The judgement of a value; that of its first sighting for a tensor that was seen before."""
        if not self.expected.knows(value.root):
            expectation = self.expected.of(value, twin)
            if twin is None and function_of(value.api) in _DRAWN and value.returned:
                # Drawn by one run alone: what is computed from it must agree as if nothing had been drawn.
                expectation = replace(expectation, rel=0.0, tainted=False)
            outcome = None if twin is None else self._compared(value, twin, expectation)
            self._learn(value, twin, expectation, outcome)
        elif twin is None:
            return None
        else:
            outcome = self._by_root.get((value.root, twin.root))
            if outcome is None:
                expectation = self._unmeasured.get(value.root) or self.expected.again(value)
                outcome = self._compared(value, twin, expectation)
                if value.root in self._unmeasured:
                    self._learn(value, twin, expectation, outcome)
                if outcome.rewired and self.expected.of_modules:
                    outcome = self._of_module(value, twin, outcome)
            elif outcome.rewired:
                outcome = self._of_module(value, twin, outcome)
        if twin is not None and outcome is not None:
            self._by_root[value.root, twin.root] = outcome
        return outcome

    def _of_module(self, value: Value, twin: Value, outcome: _Outcome) -> _Outcome:
        """The outcome for a module's result: where the module took the same as in the reference, the module is to
        blame, whatever its calls inside took.
        """
        key = key_of(value)
        if value.kind != "module" or not value.returned or value.site.phase != "fwd" or key in self._incomparable_calls:
            return outcome
        sources = self.expected.taken_by(key)
        expectation = replace(outcome.expectation, origin="call", call=key, sources=sources)
        note = "calls inside it take different inputs than in the reference"
        judgement: Judgement = "propagated" if expectation.tainted else "beyond"
        outcome = _Outcome(judgement, outcome.distance, expectation, note)
        self._learn(value, twin, expectation, outcome)
        return outcome

    def _note_inputs(self, value: Value) -> None:
        """Mark the call that takes a value without a comparable twin."""
        of_one = value.root in self._given_in_one.get(key_of(value), ())
        if self.expected.is_taken(value) and not of_one and value.dtype.startswith(("float", "bfloat", "complex")):
            self._incomparable_calls.add(key_of(value))

    def _learn(self, value: Value, twin: Value | None, expectation: Expectation, outcome: _Outcome | None) -> None:
        dtype = value.dtype if twin is None else coarser(value.dtype, twin.dtype)
        if (
            outcome is None
            or outcome.distance is None
            or outcome.distance.rel is None
            or outcome.judgement == "not-comparable"
        ):
            self._unmeasured[value.root] = expectation
            self._without_twin.add(value.root)
            rewired_rel = outcome.distance.rel if outcome is not None and outcome.rewired and outcome.distance else None
            self.expected.learn(
                value,
                twin,
                expectation.rel,
                dtype=dtype,
                tainted=expectation.tainted,
                decided=expectation.decided,
                carried=rewired_rel or 0.0,
            )
            return
        self._unmeasured.pop(value.root, None)
        self._without_twin.discard(value.root)
        distance, judgement, expectation = outcome.distance, outcome.judgement, outcome.expectation
        rel = distance.rel if distance.rel is not None and math.isfinite(distance.rel) else 1.0
        if distance.equal:
            rel = self._hidden_rel(value, distance, expectation, dtype)
        elif distance.how != "tensor":
            largest_rel = math.inf if distance.most_rel is None else distance.most_rel
            if outcome.note == LEFT_BY_UPDATE:
                largest_rel = max(largest_rel, self._turned_rel(value, 1))  # several may cancel in all projections
            rel = max(rel, min(expectation.rel, largest_rel))
        if is_swamped(value):
            # Equal beside masks is not equal: what the inputs say holds.
            rel, judgement = max(rel, expectation.rel), "propagated" if expectation.tainted else judgement
        if expectation.origin == "param" and judgement == "beyond":
            # The first call that uses a wrong weight is to be found by its result.
            self.expected.learn(value, twin, expectation.rel, dtype=dtype, tainted=False, decided=expectation.decided)
            return
        tainted = judgement in ("beyond", "propagated")
        explained = expectation.explained if tainted and expectation.tainted else expectation.rel
        self.expected.learn(
            value, twin, rel, dtype=dtype, tainted=tainted, decided=expectation.decided, explained=explained
        )

    def _hidden_rel(self, value: Value, distance: Distance, expectation: Expectation, dtype: str) -> float:
        """The difference that a value may have although its statistics are equal: where its inputs differ, or an update
        before left it, a few elements may differ in their last bit and no statistic shows it, which amounts to less
        than one rounding.
        """
        rounding = rounding_rel(UNIT_ROUNDOFF.get(dtype, 0.0))
        if distance.how != "statistics":
            return 0.0
        if self._is_left_by_update(value, expectation):
            return rounding
        return min(expectation.rel, rounding) if expectation.rel > expectation.own else 0.0

    def _is_left_by_update(self, value: Value, expectation: Expectation) -> bool:
        """True where a value is the result of an earlier update."""
        is_of_update = expectation.origin == "param" or (expectation.origin == "given" and value.site.phase == "opt")
        return self._moved is not None and is_of_update

    def _hidden_move(self, value: Value, distance: Distance, dtype: str) -> float:
        """The difference of a parameter that statistics need not show: an update by the sign of a gradient (as Adam's
        first ones) may have either sign where the gradient is as small as its rounding error.
        """
        if distance.how == "tensor" or value.stats is None:
            return 0.0
        return self._turned_rel(value, max(min(UNCERTAIN * UNIT_ROUNDOFF.get(dtype, 0.0), 1.0) * value.stats.numel, 1))

    def _turned_rel(self, value: Value, num: float) -> float:
        """The relative difference of a parameter of which ``num`` elements were moved the other way."""
        stats = value.stats
        if stats is None or not stats.rms or not self._moved:
            return 0.0
        return self._moved * math.sqrt(num / stats.numel) / stats.rms

    def _compared(self, value: Value, twin: Value, expectation: Expectation) -> _Outcome:
        if value.stats is not None and twin.stats is not None and value.stats.numel != twin.stats.numel:
            note = f"shapes {list(value.shape)} and {list(twin.shape)} cannot be compared"
            return _Outcome("not-comparable", None, expectation, note)
        distance = self._measure(*self._sides(value, twin))
        if distance.rel is None and distance.equal is None:
            note = value.note or twin.note or "nothing that both sides recorded can be compared"
            return _Outcome("not-comparable", distance, expectation, note)
        if distance.equal:
            return _Outcome("equal", distance, expectation)
        # Both updates began from equal numbers: only their own rounding may differ.
        if self._retraced and expectation.origin == "param":
            expectation = replace(expectation, rel=math.hypot(expectation.rel, _update_rounding(value.dtype)))
        elif self._is_left_by_update(value, expectation):
            judgement: Judgement = "propagated" if self._tainted or distance.nonfinite_differ else "within"
            dtype = coarser(value.dtype, twin.dtype)
            explained = replace(expectation, rel=max(distance.rel or 0.0, self._hidden_move(value, distance, dtype)))
            return _Outcome(judgement, distance, explained, LEFT_BY_UPDATE)
        expectation, limit = self._floor(value, twin, distance, expectation)
        judgement = self._judgement(distance, expectation, limit)
        # A multiple of the twin is no noise, however much of it rounding may explain.
        factor = self._factor(value, twin, expectation) if judgement == "within" else None
        if factor is not None:
            judgement, distance = "beyond", replace(distance, factor=factor)
        if judgement == "beyond" and expectation.origin == "given" and PART in value.flags | twin.flags:
            as_part = replace(expectation, rel=max(expectation.rel, distance.rel or 0.0))
            return _Outcome("within", distance, as_part, "compared as part of the whole that the map makes of it")
        excused = self._excused(value, twin, expectation, distance) if judgement == "beyond" else None
        if excused is not None:
            return _Outcome("within", distance, *excused)
        # What is in a buffer before it is filled has no meaning.
        if judgement != "within" and expectation.origin == "given" and _written_over(value):
            return _Outcome("not-comparable", distance, expectation, "memory that the call is about to write over")
        if judgement in ("beyond", "propagated") and value.site.phase == "bwd" and spot_of(value) in self._aliased:
            return _Outcome("not-comparable", distance, expectation, ALIASED)
        may_be_rewired = judgement == "beyond" or (judgement == "within" and _is_carried(distance, expectation))
        if may_be_rewired and self._is_incomparable(expectation):
            note = "its call takes different inputs than in the reference"
            return _Outcome("not-comparable", distance, expectation, note, rewired=True)
        return _Outcome(judgement, distance, expectation)

    def _factor(self, value: Value, twin: Value, expectation: Expectation) -> float | None:
        """How many times its twin a gradient is that rounding may explain; None where multiples are not asked
        for, and noise may look like this one. What rounding left of one that is 0 may be 0 in one run.
        """
        run_value, ref_value = self._sides(value, twin)
        if (
            LIMIT["statistics"] * expectation.rel <= COARSE_REL
            or run_value.site.phase != "bwd"
            or run_value.shape != ref_value.shape
        ):
            return None
        if expectation.tainted or {PART, UNORDERED} & (run_value.flags | ref_value.flags):
            return None
        multiple = multiple_of(run_value.stats, ref_value.stats) if run_value.stats and ref_value.stats else None
        if multiple is None or (multiple.factor == 0 and self._is_noise(ref_value)):
            return None
        if value.kind == "param" or self._is_incomparable(expectation):
            self._chances.append(multiple.chance)
        return multiple.factor if self._multiples and multiple.chance <= SINGLE else None

    def _is_noise(self, gradient: Value) -> bool:
        return gradient.stats is not None and gradient.stats.norm <= NOISE * self.expected.largest_gradient

    def _is_incomparable(self, expectation: Expectation) -> bool:
        """True where a value was made from values without a comparable twin, here or in the forward call; or the runs
        connect it differently.
        """
        if expectation.origin == "wiring":
            return True
        if expectation.origin not in ("call", "gradient") or expectation.call is None:
            return False
        micro, _, name, number = expectation.call
        keys = expectation.call, (micro, "fwd", name, number)
        sources = self._without_twin.intersection(expectation.sources).difference(self._given_in_one.get(keys[1], ()))
        return any(key in self._incomparable_calls for key in keys) or bool(sources)

    def _excused(
        self, value: Value, twin: Value, expectation: Expectation, distance: Distance
    ) -> tuple[Expectation, str] | None:
        may_turn = value.site.phase == "bwd" and self.expected.decides(expectation.call)
        return excuse(
            Difference(*self._sides(value, twin), expectation, distance),
            value,
            may_turn=may_turn,
            compiled=self._compiled,
            of_modules=self.expected.of_modules,
        )

    def _floor(
        self, value: Value, twin: Value, distance: Distance, expectation: Expectation
    ) -> tuple[Expectation, float]:
        """The expectation and its limit in times: those of the Tolerance, where it has this site or kind."""
        fair = distance.most_rel is not None and expectation.rel < COARSE_REL
        limit = LIMIT["tensor" if fair else distance.how]
        # Projections see the same numbers twice, and may have missed most of a distance the first time.
        if fair and op_class_of(function_of(value.api)) == "exact":
            limit *= MOVED
        if self._tolerance is None or expectation.tainted:
            return expectation, limit
        floor = floor_of(self._tolerance, *self._sides(value, twin), how=distance.how)
        if floor is None:
            return expectation, limit
        spread = self._tolerance.spread
        return replace(expectation, rel=floor), max(limit, 2 * (spread or 0.0))

    def _sides(self, value: Value, twin: Value) -> tuple[Value, Value]:
        """A value of the guide and its twin as those of the run and of the reference."""
        return (value, twin) if self._run_is_guide else (twin, value)

    def _judgement(self, distance: Distance, expectation: Expectation, limit: float) -> Judgement:
        if expectation.tainted and distance.how != "tensor":
            # Statistics do not give the size of a difference that is not rounding; it may seem small. Projections do.
            largest_rel = math.inf if distance.most_rel is None else distance.most_rel
            explained = expectation.explained
            ended = explained is not None and explained < COARSE_REL and largest_rel <= LIMIT["tensor"] * explained
            return "within" if ended and not distance.nonfinite_differ else "propagated"
        beyond: Judgement = "propagated" if expectation.tainted else "beyond"
        if distance.nonfinite_differ or distance.rel is None:
            return beyond
        if times_expected(distance.rel, expectation.rel) <= limit:
            # A difference that a wrong input explains is not explained by rounding.
            return "propagated" if expectation.tainted and distance.rel > expectation.own * limit else "within"
        return "beyond"


def _is_carried(distance: Distance, expectation: Expectation) -> bool:
    """True where a difference that rounding might explain is rather that of inputs which the runs make in different
    ways: as a ratio it is nearer to what these amount to than to rounding.
    """
    measured, rounding, carried = distance.rel or 0.0, expectation.rel, expectation.carried
    return carried > 0 and math.inf > measured > max(CARRIED * rounding, math.sqrt(rounding * carried))


def _update_rounding(dtype: str) -> float:
    """The relative difference of a parameter that two kernels update from equal values: some roundings each."""
    return math.sqrt(2) * op_rounding_rel("unknown", dtype, dtype) if dtype in UNIT_ROUNDOFF else 0.0


def _written_over(value: Value) -> bool:
    """True where the value is the destination that a call writes to: its former contents may be anything."""
    return value.site.slot == "in0" and function_of(value.api) in WRITERS
