"""Alignment of two runs: pairs of values, in one step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, eq
from typing import NamedTuple, TypeVar

from trueline.comparison.match.call_pairs import Shapes, Side, Twins, match_calls, match_values, own_shape
from trueline.comparison.match.names import NameMap, shared_names
from trueline.comparison.match.unmatched import Reasons, is_inside, nothing_aligned_error
from trueline.judge.recorded.step_values import Call, StepValues, Value

Item = TypeVar("Item")


class Pair(NamedTuple):
    """A value and its twin in the other run; where one is None, ``reason`` tells why."""

    mine: Value | None
    theirs: Value | None
    reason: str = ""


@dataclass(frozen=True)
class Alignment:
    """The values of ``mine`` (of the run) matched with those of ``theirs`` (of the reference).

    ``pairs`` has every value of both sides once, in the order of execution of ``mine``; a value of the other side alone
    stands behind its predecessor there. ``calls`` pairs calls likewise. Gradients of the run before the update were
    divided by ``loss_scale`` to be comparable.
    """

    mine: StepValues
    theirs: StepValues
    pairs: list[Pair]
    calls: Twins
    loss_scale: float = 1.0

    @property
    def sides(self) -> tuple[StepValues, StepValues]:
        """Step of the run and step of the reference."""
        return self.mine, self.theirs

    @cached_property
    def connects_alike(self) -> bool:
        """True where every value has a twin with equal index, first seen at an equal index."""
        return all(
            value is not None and twin is not None and value.index == twin.index and value.root == twin.root
            for value, twin, _ in self.pairs
        )

    @property
    def twins(self) -> list[tuple[int, int]]:
        """Indices of matched values, as (run, reference)."""
        return [(value.index, twin.index) for value, twin, _ in self.pairs if value is not None and twin is not None]

    def apply_to(self, run: StepValues, ref: StepValues) -> Alignment:
        """Apply the alignment to two steps whose values replace, index by index, those that were aligned."""
        if run is self.mine and ref is self.theirs:
            return self

        def call_of(step: StepValues, call: Call | None) -> Call | None:
            return None if call is None else replace(call, values=[step.values[value.index] for value in call.values])

        def value_of(step: StepValues, value: Value | None) -> Value | None:
            return None if value is None else step.values[value.index]

        pairs = [Pair(value_of(run, value), value_of(ref, twin), reason) for value, twin, reason in self.pairs]
        return Alignment(run, ref, pairs, [(call_of(run, call), call_of(ref, twin)) for call, twin in self.calls])


def align(
    run: StepValues, ref: StepValues, names: NameMap, *, shapes: tuple[Shapes, Shapes] = (own_shape, own_shape)
) -> Alignment:
    """Align two steps under the names of ``names``; ``shapes`` gives the possible shapes of each side's values.

    Raises ``AlignmentError`` where nothing of the two models aligns.
    """
    same_layout = _has_same_layout(run.values, ref.values)
    run_plain, ref_plain = shared_names(run.values, run.values if same_layout else ref.values, names)
    if same_layout:
        calls: Twins = [*zip(run.calls(), ref.calls(), strict=True)]
        alignment = Alignment(run, ref, [*map(Pair, run.values, ref.values)], calls)
    else:
        alignment = Alignment(run, ref, *_match_sides(Side(run, run_plain, shapes[0]), Side(ref, ref_plain, shapes[1])))
    if run.values and ref.values and not _is_of_one_model(alignment, run_plain):
        raise nothing_aligned_error(run, ref, run_plain, ref_plain)
    return alignment


_LAYOUT = attrgetter(
    *("site.micro", "site.phase", "site.name", "site.call", "site.slot", "kind", "api", "module", "flags")
)


def _has_same_layout(run: Sequence[Value], ref: Sequence[Value]) -> bool:
    """Tell whether both sides agree, value by value, in everything that values are matched by.

    So it is for one script that ran twice; the twin of each value then has its index.
    """
    if len(run) != len(ref) or not all(map(eq, map(_LAYOUT, run), map(_LAYOUT, ref))):
        return False
    args = [[value.args for value in values if value.args is not None] for values in (run, ref)]
    if args[0] != args[1] and sorted(args[0]) == sorted(args[1]):
        return False  # calls in another order
    return all(
        (value.args is None) == (twin.args is None)
        and (value.root == twin.root or value.site.phase not in _UPDATE_PHASES)
        for value, twin in zip(run, ref, strict=True)
    )


_UPDATE_PHASES = ("param", "grad", "opt")
"""Phases in which calls are matched by the parameter that they work on."""


def _is_of_one_model(alignment: Alignment, plain: Callable[[str], str]) -> bool:
    """Tell whether values inside a model have twins; or any values, if a side recorded nothing of a model."""
    if any(pair.mine and pair.theirs and is_inside(pair.mine, plain) for pair in alignment.pairs):
        return True
    return bool(alignment.twins) and not (_has_model_values(alignment.mine) and _has_model_values(alignment.theirs))


def _has_model_values(step: StepValues) -> bool:
    return any(value.kind in ("module", "param") or value.module for value in step.values)


def _match_sides(run: Side, ref: Side) -> tuple[list[Pair], Twins]:
    twins = match_calls(run, ref)
    reasons = Reasons(run, ref, "RUN", "REF"), Reasons(ref, run, "REF", "RUN")

    def fit(value: Value, twin: Value) -> bool:
        return not run.shapes(value).isdisjoint(ref.shapes(twin))

    pairs: list[Pair] = []
    for call, twin in twins:
        if call is not None and twin is not None:
            pairs += [
                _make_pair(*value_pair, *reasons, call_has_twin=True) for value_pair in match_values(call, twin, fit)
            ]
            continue
        run_values, ref_values = (side.values if side is not None else () for side in (call, twin))
        pairs += [_make_pair(value, None, *reasons, call_has_twin=False) for value in run_values]
        pairs += [_make_pair(None, value, *reasons, call_has_twin=False) for value in ref_values]
    return _sort_items(pairs, _indices_of_pair), _sort_items(twins, _indices_of_call)


def _make_pair(
    value: Value | None, twin: Value | None, run_reasons: Reasons, ref_reasons: Reasons, *, call_has_twin: bool
) -> Pair:
    if value is not None:
        return Pair(value, twin, run_reasons.text(value, call_has_twin=call_has_twin) if twin is None else "")
    return Pair(value, twin, ref_reasons.text(twin, call_has_twin=call_has_twin) if twin is not None else "")


def _sort_items(items: Sequence[Item], index: Callable[[Item], tuple[int | None, int | None]]) -> list[Item]:
    """Sort items by their ``index`` in the run; items of the reference alone follow their predecessor there."""
    indices = [index(item) for item in items]
    run_index_by_ref = {
        ref_index: run_index for run_index, ref_index in indices if run_index is not None and ref_index is not None
    }
    predecessors = _matched_predecessors(
        run_index_by_ref, [ref_index for _, ref_index in indices if ref_index is not None]
    )

    def position(item: Item) -> tuple[int, int, int]:
        run_index, ref_index = index(item)
        if run_index is not None:
            return run_index, 0, 0
        return (predecessors[ref_index], 1, ref_index) if ref_index is not None else (-1, 1, 0)

    return sorted(items, key=position)


def _indices_of_pair(pair: Pair) -> tuple[int | None, int | None]:
    return pair.mine and pair.mine.index, pair.theirs and pair.theirs.index


def _indices_of_call(pair: tuple[Call | None, Call | None]) -> tuple[int | None, int | None]:
    call, twin = pair
    return call and call.first.index, twin and twin.first.index


def _matched_predecessors(run_index_by_ref: dict[int, int], ref_indices: list[int]) -> dict[int, int]:
    """Index in the run of the nearest predecessor that is matched, or -1, by index of an unmatched reference item."""
    predecessors: dict[int, int] = {}
    last = -1
    for index in sorted(ref_indices):
        if index in run_index_by_ref:
            last = run_index_by_ref[index]
        else:
            predecessors[index] = last
    return predecessors
