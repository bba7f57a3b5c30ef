"""The first place where one of two runs computes in another precision, while the rest of the model does not.

A whole run in another precision is a choice: most parameters, or most matrix products, are then of another dtype, and
rounding is judged by the coarser one. Where only a few calls are, something casts that should not: a softmax or a cache
in bfloat16, a module that autocast misses. Three things show it, in the order of execution. A value is coarser than its
twin. A matrix product is of another dtype than its twin. Or a module has, among the values of its calls, a coarsest
dtype that is not that of the same module in the other run: so a cast is found that is undone before the next call which
both runs make.

A run that computes another part more finely and ends in the same dtype, as a softmax in float32 within bfloat16, does
not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.names import ROOT
from trueline.comparison.op_names import function_of, op_class_of
from trueline.judge.recorded.step_values import Value

_PRODUCTS = frozenset({"matmul", "matvec", "attention"})


@dataclass(frozen=True, slots=True)
class DtypesPart:
    """The first value of ``step`` that is coarser in one run: ``dtype`` in the run, ``ref_dtype`` in the reference."""

    step: Step
    row: Compared
    dtype: str
    ref_dtype: str


def dtypes_part(steps: Sequence[Step]) -> DtypesPart | None:
    """The value at which dtypes part at the first of ``steps``; None without one, or if most of the model differs."""
    at = min((step.step for step in steps), default=None)
    parts = [part for step in steps if step.step == at and (part := _first_of(step)) is not None]
    return min(parts, key=lambda part: (part.row.position, part.step.rank or 0), default=None)


def update_part(steps: Sequence[Step]) -> DtypesPart | None:
    """The first value of an update that is of another precision at the first of ``steps``, where the forward pass is of
    one: states or weights that only one run keeps in 16 bits. None where there is none, or where the matrix products
    differ as well, as the whole run is then in another precision by choice.
    """
    at = min((step.step for step in steps), default=None)
    parts = [part for step in steps if step.step == at and (part := _update_of(step)) is not None]
    return min(parts, key=lambda part: (part.row.position, part.step.rank or 0), default=None)


_FEW_OF_UPDATE = 0.25
"""Share of the values of an update that are of another precision, from which on it is not that of one scalar."""


def _update_of(step: Step) -> DtypesPart | None:
    pairs = [
        (row, dtype, ref_dtype)
        for row in step.rows
        if (dtype := _float(row.run_value)) and (ref_dtype := _float(row.ref_value))
    ]
    # A run whose products are in another precision was set up that way.
    products = [dtype == ref_dtype for row, dtype, ref_dtype in pairs if _is_product(row)]
    updates = [
        (row, dtype, ref_dtype)
        for row, dtype, ref_dtype in pairs
        if row.value.site.phase == "opt" and row.value.kind == "op" and row.value.numel > 1
        if not row.value.function.endswith("_like")
    ]
    differing = [update for update in updates if update[1] != update[2]]
    if not products or 2 * sum(products) <= len(products) or len(differing) <= _FEW_OF_UPDATE * len(updates):
        return None
    return DtypesPart(step, *differing[0])


def _first_of(step: Step) -> DtypesPart | None:
    if all(map(_is_alike, step.rows)) or _is_chosen(step.rows) or any(map(_is_compiled_model, step.rows)):
        return None
    # Modules of the reference may go by other names.
    names = _own_names(step)
    coarsest = _coarsest_by_module(step, names)
    for row in step.rows:
        if row.value.site.phase != "fwd" or _is_another_input(row):
            continue
        dtype, ref_dtype = _float(row.run_value), _float(row.ref_value)
        if (
            dtype
            and ref_dtype
            and (UNIT_ROUNDOFF[dtype] > UNIT_ROUNDOFF[ref_dtype] or (dtype != ref_dtype and _is_product(row)))
        ):
            return DtypesPart(step, row, dtype, ref_dtype)
        value = row.value
        pair = coarsest.get(value.module if row.run_value is not None else names.get(value.module, value.module))
        if pair is not None and value.kind == "op" and _coarsest(pair) in (dtype, ref_dtype):
            return DtypesPart(step, row, *pair)
    return None


def _is_alike(row: Compared) -> bool:
    """True where both runs have a value, in the same module and of the same dtype."""
    run_value, ref_value = row.run_value, row.ref_value
    if run_value is None or ref_value is None:
        return False
    return run_value.dtype == ref_value.dtype and run_value.module == ref_value.module


def _is_another_input(row: Compared) -> bool:
    """True where a call takes another value there than in the reference, as a sum whose addends are swapped does."""
    return row.expectation is not None and row.expectation.origin == "wiring" and not row.value.returned


def _is_chosen(rows: Sequence[Compared]) -> bool:
    """True where most parameters, or most matrix products, are of another dtype."""
    pairs: dict[str, list[bool]] = {"param": [], "product": []}
    for row in rows:
        dtype, ref_dtype = _float(row.run_value), _float(row.ref_value)
        if not dtype or not ref_dtype:
            continue
        value = row.value
        if value.site.phase == "param":
            pairs["param"].append(dtype != ref_dtype)
        elif _is_product(row):
            pairs["product"].append(dtype != ref_dtype)
    return any(2 * sum(differ) > len(differ) for differ in pairs.values())


def _is_compiled_model(row: Compared) -> bool:
    """True where a value is of a model that is compiled as a whole: in which precision most of it computes is not
    seen.
    """
    value = row.value
    return value.kind == "module" and not value.module and "compiled" in value.flags


def _is_product(row: Compared) -> bool:
    """True where a value is what a matrix product of the forward pass returned."""
    value = row.value
    return value.site.phase == "fwd" and value.returned and op_class_of(function_of(value.api)) in _PRODUCTS


def _coarsest_by_module(step: Step, names: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    """The coarsest dtypes of the calls of each module in the run and in the reference, where they differ, by its name
    in the run. Modules of which a run has no call, as those that it compiled, are left out.
    """
    sides: tuple[defaultdict[str, set[str]], ...] = (defaultdict(set), defaultdict(set))
    for row in step.rows:
        for of_reference, value in enumerate((row.run_value, row.ref_value)):
            dtype = _float(value)
            if value is not None and dtype and value.kind == "op" and value.site.phase == "fwd":
                name = value.module if not of_reference else names.get(value.module, value.module)
                sides[of_reference][name].add(dtype)
    coarsest, ref_coarsest = ({name: _coarsest(dtypes) for name, dtypes in side.items()} for side in sides)
    compiled = {*step.alignment.mine.compiled, *step.alignment.theirs.compiled}
    return {
        name: (coarsest[name], ref_coarsest[name])
        for name in coarsest.keys() & ref_coarsest.keys()
        if coarsest[name] != ref_coarsest[name] and not _is_within(name, compiled)
    }


def _own_names(step: Step) -> Mapping[str, str]:
    """The name in the run of each module of the reference, from the calls that both make."""
    pairs = ((value.first, ref_value.first) for value, ref_value in step.alignment.calls if value and ref_value)
    return {ref_value.module: value.module for value, ref_value in pairs if value.kind == "op"}


def _is_within(name: str, compiled: Iterable[str]) -> bool:
    return any(module == ROOT or name == module or name.startswith(f"{module}.") for module in compiled)


def _coarsest(dtypes: Iterable[str]) -> str:
    return max(dtypes, key=UNIT_ROUNDOFF.__getitem__)


def _float(value: Value | None) -> str:
    """The dtype of a value that has a rounding, '' of others."""
    return value.dtype if value is not None and value.dtype in UNIT_ROUNDOFF else ""
