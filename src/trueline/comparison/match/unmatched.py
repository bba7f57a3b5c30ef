"""Why a value of one run has no twin in the other, in texts that many values share."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from trueline.comparison.match.call_pairs import Side
from trueline.comparison.match.names import ROOT
from trueline.judge.recorded.step_values import OF_BATCH, StepValues, Value
from trueline.schema.errors import AlignmentError


class Reasons:
    """Why values of one side (``own``, shown as ``name``) have no twin on the other side."""

    def __init__(self, own: Side, other: Side, name: str, other_name: str) -> None:
        self._own = own
        self._where, self._other_name = f"only in {name}", other_name
        values = other.values
        self._phases = {value.site.phase for value in values}
        self._kinds = {value.kind for value in values}
        self._places = {other.plain(value.site.name) for value in values if value.kind in ("module", "param")}
        self._places |= {other.plain(value.module) for value in values if value.kind == "op"}
        self._compiled = other.compiled
        self._gradients = {value.index for call in own.gradients for value in call.values}

    def of(self, value: Value, *, called: bool) -> str:
        """The reason as a text. ``called``: the call that the value belongs to has a twin."""
        return f"{self._where}: {self._why(value, called=called)}"

    def _why(self, value: Value, *, called: bool) -> str:
        site, other = value.site, self._other_name
        if called:
            return f"the call has no such value in {other}"
        if site.phase == "comm":
            return f"a collective that {other} does not need"
        place = self._own.plain(value.module if value.kind == "op" else site.name)
        if value.kind != "param" and self._is_compiled(place, site.phase):
            return f"inside a compiled module of {other}"
        if "recomputed" in value.flags:
            return f"recomputed for the backward pass, which {other} does not do"
        if site.phase not in self._phases:
            return f"{other} recorded nothing in phase {site.phase}"
        if value.kind not in self._kinds:
            return f"{other} recorded no values of kind {value.kind}"
        if value.kind == "param":
            return self._why_param(value, place)
        if site.phase == "opt":
            return f"a call of the optimizer that {other} does not make"
        if place and place not in self._places:
            return f"{other} has no module of that name"
        if value.index in self._gradients:
            return f"{other} has no gradient there"
        return f"a call that {other} does not make"

    def _is_compiled(self, place: str, phase: str) -> bool:
        """Whether a place lies within what the other side compiled: some module, or the whole model."""
        if place and phase in OF_BATCH and ROOT in self._compiled:
            return True
        return any(place == name or place.startswith(f"{name}.") for name in self._compiled)

    def _why_param(self, value: Value, place: str) -> str:
        if place not in self._places:
            return f"{self._other_name} has no parameter of that name"
        what = {"bwd": "its gradient before ranks reduce it", "grad": "its gradient"}.get(value.site.phase, "it")
        return f"{self._other_name} has the parameter, but did not record {what}"


def nothing_aligned(
    mine: StepValues, theirs: StepValues, plain: Callable[[str], str], other_plain: Callable[[str], str]
) -> AlignmentError:
    """The error for two sides that have nothing in common, with a map of names that might help."""
    own, other = _places(mine, plain), _places(theirs, other_plain)
    if not own or not other:
        empty = mine.label if not own else theirs.label
        return AlignmentError(
            f"Nothing of a model was recorded in '{empty}' at step {mine.step}, and nothing aligns. Record it with "
            "`trueline run --plan mix -- COMMAND`."
        )
    a, b, are_alike = _nearest(own, other)
    hint = f"Pass --map '{_renaming(a, b)}'" if are_alike else "If they are one model, pass a --map of its names"
    return AlignmentError(
        f"0 of {len(own):,} modules and parameters of '{mine.label}' exist in '{theirs.label}', which has "
        f"{len(other):,}. '{mine.label}' has '{a}', '{theirs.label}' has '{b}'. {hint}, or record again."
    )


def _places(step: StepValues, plain: Callable[[str], str]) -> dict[str, str]:
    """The names of modules and parameters as recorded, by their shared names."""
    found = {plain(value.site.name): value.site.name for value in step.values if value.kind in ("module", "param")}
    found |= {
        plain(value.module): value.module
        for value in step.values
        if value.kind == "op" and value.module and value.site.phase == "fwd"
    }
    return {name: raw for name, raw in found.items() if name and name != ROOT}


def _nearest(own: dict[str, str], other: dict[str, str]) -> tuple[str, str, bool]:
    """One name of each side, and whether these have the same end: then a rule that renames one may map others too."""
    by_end: dict[str, str] = {}
    for name in other:
        by_end.setdefault(name.rpartition(".")[2], name)
    for name in sorted(own, key=len, reverse=True):
        twin = by_end.get(name.rpartition(".")[2])
        if twin is not None and not twin.isdigit():
            return own[name], other[twin], True
    name = next(iter(own))
    near = difflib.get_close_matches(name, list(other), n=1, cutoff=0.0)
    return own[name], other[near[0]], False


def _renaming(one: str, other: str) -> str:
    """The map that turns the name ``one`` into ``other``, without the end that they share."""
    a, b = one.split("."), other.split(".")
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if a[-1] == b[-1]:
        front, back = ".".join(a[:-1]), ".".join(b[:-1])
        if not front:
            return f"{back}.="
        return f"{front}.={back + '.' if back else ''}"
    return f"{'.'.join(a)}={'.'.join(b)}"


def is_inside(value: Value, plain: Callable[[str], str]) -> bool:
    """Whether a value is inside a model: neither the model as a whole, nor a call outside of it, nor the optimizer's,
    which all models have.
    """
    if value.site.phase in ("opt", "comm") or value.kind == "value":
        return False
    place = plain(value.module if value.kind == "op" else value.site.name)
    return bool(place) and place != ROOT
