"""Reasons why a value of one run has no twin in the other, in texts that many values share."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from trueline.comparison.match.call_pairs import Side
from trueline.comparison.match.names import ROOT
from trueline.judge.recorded.step_values import OF_BATCH, StepValues, Value
from trueline.schema.errors import AlignmentError


class Reasons:
    """Reasons why values of one ``side``, shown as ``name``, have no twin on the ``other_side``."""

    def __init__(self, side: Side, other_side: Side, name: str, other_name: str) -> None:
        self._side = side
        self._prefix, self._other_name = f"only in {name}", other_name
        values = other_side.values
        self._phases = {value.site.phase for value in values}
        self._kinds = {value.kind for value in values}
        self._owner_names = {other_side.plain(value.site.name) for value in values if value.kind in ("module", "param")}
        self._owner_names |= {other_side.plain(value.module) for value in values if value.kind == "op"}
        self._compiled = other_side.compiled
        self._gradients = {value.index for call in side.gradients for value in call.values}

    def text(self, value: Value, *, call_has_twin: bool) -> str:
        """Reason as text; ``call_has_twin`` where the call of the value has a twin."""
        return f"{self._prefix}: {self._why_value(value, call_has_twin=call_has_twin)}"

    def _why_value(self, value: Value, *, call_has_twin: bool) -> str:
        site, other_name = value.site, self._other_name
        if call_has_twin:
            return f"the call has no such value in {other_name}"
        if site.phase == "comm":
            return f"a collective that {other_name} does not need"
        owner = self._side.plain(value.module if value.kind == "op" else site.name)
        if value.kind != "param" and self._is_compiled(owner, site.phase):
            return f"inside a compiled module of {other_name}"
        if "recomputed" in value.flags:
            return f"recomputed for the backward pass, which {other_name} does not do"
        if site.phase not in self._phases:
            return f"{other_name} recorded nothing in phase {site.phase}"
        if value.kind not in self._kinds:
            return f"{other_name} recorded no values of kind {value.kind}"
        if value.kind == "param":
            return self._why_param(value, owner)
        if site.phase == "opt":
            return f"a call of the optimizer that {other_name} does not make"
        if owner and owner not in self._owner_names:
            return f"{other_name} has no module of that name"
        if value.index in self._gradients:
            return f"{other_name} has no gradient there"
        return f"a call that {other_name} does not make"

    def _is_compiled(self, owner: str, phase: str) -> bool:
        """Tell whether a module or parameter lies within a module, or the whole model, that the other side compiled."""
        if owner and phase in OF_BATCH and ROOT in self._compiled:
            return True
        return any(owner == name or owner.startswith(f"{name}.") for name in self._compiled)

    def _why_param(self, value: Value, owner: str) -> str:
        if owner not in self._owner_names:
            return f"{self._other_name} has no parameter of that name"
        subject = {"bwd": "its gradient before ranks reduce it", "grad": "its gradient"}.get(value.site.phase, "it")
        return f"{self._other_name} has the parameter, but did not record {subject}"


def nothing_aligned_error(
    run: StepValues, ref: StepValues, run_plain: Callable[[str], str], ref_plain: Callable[[str], str]
) -> AlignmentError:
    """Make the error for two sides that have nothing in common, with a map of names that might help."""
    run_names, ref_names = _raw_names(run, run_plain), _raw_names(ref, ref_plain)
    if not run_names or not ref_names:
        empty = run.label if not run_names else ref.label
        return AlignmentError(
            f"Nothing of a model was recorded in '{empty}' at step {run.step}, and nothing aligns. Record it with "
            "`trueline run --plan mix -- COMMAND`."
        )
    run_name, ref_name, are_alike = _nearest_names(run_names, ref_names)
    hint = (
        f"Pass --map '{_rename_rule(run_name, ref_name)}'"
        if are_alike
        else "If they are one model, pass a --map of its names"
    )
    return AlignmentError(
        f"0 of {len(run_names):,} modules and parameters of '{run.label}' exist in '{ref.label}', which has "
        f"{len(ref_names):,}. '{run.label}' has '{run_name}', '{ref.label}' has '{ref_name}'. {hint}, or record again."
    )


def _raw_names(step: StepValues, plain: Callable[[str], str]) -> dict[str, str]:
    """Recorded names of modules and parameters by their shared names."""
    raw_by_shared = {
        plain(value.site.name): value.site.name for value in step.values if value.kind in ("module", "param")
    }
    raw_by_shared |= {
        plain(value.module): value.module
        for value in step.values
        if value.kind == "op" and value.module and value.site.phase == "fwd"
    }
    return {name: raw for name, raw in raw_by_shared.items() if name and name != ROOT}


def _nearest_names(run_names: dict[str, str], ref_names: dict[str, str]) -> tuple[str, str, bool]:
    """Similar names of both sides, and whether they end alike: then renaming one may map the others, too."""
    by_end: dict[str, str] = {}
    for name in ref_names:
        by_end.setdefault(name.rpartition(".")[2], name)
    for name in sorted(run_names, key=len, reverse=True):
        twin = by_end.get(name.rpartition(".")[2])
        if twin is not None and not twin.isdigit():
            return run_names[name], ref_names[twin], True
    name = next(iter(run_names))
    closest = difflib.get_close_matches(name, list(ref_names), n=1, cutoff=0.0)
    return run_names[name], ref_names[closest[0]], False


def _rename_rule(name: str, ref_name: str) -> str:
    """Rule that turns ``name`` into ``ref_name``, without the end that they share."""
    parts, ref_parts = name.split("."), ref_name.split(".")
    while len(parts) > 1 and len(ref_parts) > 1 and parts[-1] == ref_parts[-1]:
        parts, ref_parts = parts[:-1], ref_parts[:-1]
    if parts[-1] == ref_parts[-1]:
        front, back = ".".join(parts[:-1]), ".".join(ref_parts[:-1])
        if not front:
            return f"{back}.="
        return f"{front}.={back + '.' if back else ''}"
    return f"{'.'.join(parts)}={'.'.join(ref_parts)}"


def is_inside(value: Value, plain: Callable[[str], str]) -> bool:
    """Tell whether a value is inside a model.

    Values of the model as a whole, of calls outside of it, and of the optimizer, which all models have, are not.
    """
    if value.site.phase in ("opt", "comm") or value.kind == "value":
        return False
    owner = plain(value.module if value.kind == "op" else value.site.name)
    return bool(owner) and owner != ROOT
