"""Tensors that the runs connect differently: given to a call, aliased or told apart in one run alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trueline.comparison.match.align import Alignment
from trueline.judge.recorded.step_values import CallKey, StepValues, Value, key_of, spot_of


def aliased_in_one(alignment: Alignment) -> Iterator[tuple[Value, Value]]:
    """Values of the forward pass whose gradients have other terms than in the other run: of a tensor that was seen
    before in one run only, as where a cast finds the dtype that it is to make, or a hook returns a view; or that is
    another one, with fewer uses, as what a copy returned. Gradients are those of the tensor, with all of its uses.
    """
    forward = _pairs(alignment, "fwd")
    alike = {(value.root, twin.root) for value, twin in forward if (value.index, twin.index) == (value.root, twin.root)}
    # A gradient is the sum over all uses of a tensor: where one run uses it once more, it has a further term.
    uses, ref_uses = (_uses(side) for side in alignment.sides)
    for value, twin in forward:
        if (value.root, twin.root) not in alike and uses[value.root] != ref_uses[twin.root] and not value.returned:
            yield value, twin
    seen_apart = {
        (value.root, twin.root) for value, twin in forward if (value.index == value.root) != (twin.index == twin.root)
    }
    for value, twin in forward if seen_apart else ():
        if (value.root, twin.root) in seen_apart:
            yield value, twin


def _uses(side: StepValues) -> Counter[int]:
    """Number of calls of functions that take each tensor in the forward pass, by root."""
    inputs = (value for value in side.values if value.kind == "op" and not value.returned)
    root_of_slot = {(key_of(value), value.site.slot): value.root for value in inputs}
    return Counter(root for (key, _), root in root_of_slot.items() if key[1] == "fwd")


def split_in_one(alignment: Alignment) -> Iterator[tuple[Value, Value]]:
    """Values of the forward pass that are one memory in both runs, and for autograd one tensor only in one run, as
    where a hook on a module gives it a view: that has the gradient of its own uses. Where the tensor was first seen,
    its gradient has all terms in both.
    """
    gradients = {spot_of(value): (value.root, twin.root) for value, twin in _pairs(alignment, "bwd")}
    whole: dict[tuple[int, int], tuple[int, int]] = {}
    for value, twin in _pairs(alignment, "fwd"):
        roots = gradients.get(spot_of(value))
        if roots is None:
            continue
        # The first sighting has the whole gradient; later ones are compared with it in both runs.
        first = whole.setdefault((value.root, twin.root), roots)
        if (roots[0] == first[0]) != (roots[1] == first[1]):
            yield value, twin


def _pairs(alignment: Alignment, phase: str) -> list[tuple[Value, Value]]:
    return [(a, b) for a, b, _ in alignment.pairs if a is not None and b is not None and a.site.phase == phase]


def given_in_one(alignment: Alignment, *, of_run: bool) -> dict[CallKey, set[int]]:
    """Roots, of the run or (False) of the reference, of tensors that only one run gives to a call of a function which
    both make, as a mask: then it is the call that differs.
    """
    roots_by_call: dict[CallKey, set[int]] = {}
    for call, twin in alignment.calls:
        if call is None or twin is None or call.phase != "fwd" or call.first.kind != "op":
            continue
        guide_call, other_call = (call, twin) if of_run else (twin, call)
        slots = {value.site.slot for value in other_call.ins}
        roots = {value.root for value in guide_call.ins if value.site.slot not in slots}
        if roots:
            roots_by_call[guide_call.key] = roots
    return roots_by_call
