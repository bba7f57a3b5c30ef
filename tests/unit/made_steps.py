"""Steps made by hand for the judge of `compare`: a chain of calls on float32 arrays, of which any may be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.distance import Distance
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats

ROUNDING = 2.0**-24


class Making:
    """Puts values into a step one by one; an array that was put in before is the same tensor."""

    def __init__(self, label: str = "run", step: int = 0) -> None:
        self._label, self._step = label, step
        self.values: list[Value] = []
        self._roots: dict[int, int] = {}
        self._arrays: list[Any] = []

    def put(
        self,
        phase: str,
        name: str,
        slot: str,
        array: Any,
        *,
        api: str = "",
        kind: str = "op",
        args: str = "{}",
        module: str = "m.sub",
    ) -> Making:
        index = len(self.values)
        root = self._roots.setdefault(id(array), index)
        self._arrays.append(array)  # ids stay taken
        module = module if kind != "param" else ""
        self.values.append(
            Value(
                index=index,
                root=root,
                ranks=(0,),
                site=Site(self._step, 0, 0, phase, name, 0, slot),
                kind=kind,
                api=api,
                module=module,
                flags=frozenset(),
                dtype=str(array.dtype),
                shape=array.shape,
                args=args if phase in ("fwd", "opt") and slot == "in0" else None,
                stats=stats_of(array),
                load=lambda: array,
            )
        )
        return self

    def call(self, name: str, api: str, ins: Sequence[Any], out: Any, *, phase: str = "fwd") -> Making:
        for place, array in enumerate(ins):
            self.put(phase, name, f"in{place}", array, api=api)
        return self.put(phase, name, "out0", out, api=api)

    @property
    def done(self) -> StepValues:
        return StepValues(self._label, self._step, (0,), self.values)


def stats_of(array: Any) -> TensorStats:
    finite = array[np.isfinite(array)].astype(np.float64)
    return TensorStats(
        dtype=str(array.dtype),
        shape=array.shape,
        numel=array.size,
        nan=int(np.isnan(array).sum()),
        pos_inf=int(np.isposinf(array).sum()),
        neg_inf=int(np.isneginf(array).sum()),
        min=float(finite.min()) if finite.size else None,
        max=float(finite.max()) if finite.size else None,
        sum=float(finite.sum()),
        sum_sq=float((finite**2).sum()),
    )


def exactly(mine: Value, theirs: Value) -> Distance:
    """The distance of the arrays themselves."""
    assert mine.load is not None
    assert theirs.load is not None
    one, other = mine.load().astype(np.float64), theirs.load().astype(np.float64)
    both = np.isfinite(one) & np.isfinite(other)
    rel = float(np.linalg.norm((one - other)[both]) / (np.linalg.norm(other[both]) or 1.0))
    nonfinite = bool((np.isfinite(one) != np.isfinite(other)).any())
    return Distance(rel == 0 and not nonfinite, rel, "tensor", certain_rel=rel, nonfinite_differ=nonfinite)


def by_statistics(mine: Value, theirs: Value) -> Distance:
    """The same, as an estimate."""
    return replace(exactly(mine, theirs), how="statistics")


Off = Mapping[str, float]
"""By how much the arrays of a chain are off, by name, relative."""


def chain(label: str, off: Off = {}, *, step: int = 0, backward: bool = False) -> Making:  # noqa: B006
    """y = x·wᵀ, z = gelu(y), t = z + y; with ``backward`` the gradients of t, z and w, and the update of w."""
    draw = np.random.default_rng(0)

    def made(name: str, *shape: int) -> Any:
        array, noise = draw.standard_normal(shape), draw.standard_normal(shape)
        return (array * (1 + off.get(name, 0.0)) + 0 * noise).astype(np.float32)

    x, w, y, z, t = (made(*each) for each in (("x", 8, 4), ("w", 6, 4), ("y", 8, 6), ("z", 8, 6), ("t", 8, 6)))
    making = Making(label, step)
    making.call("m.sub.linear", "torch.nn.functional.linear", (x, w), y)
    making.call("m.sub.gelu", "torch.nn.functional.gelu", (y,), z)
    making.call("m.sub.add", "torch.add", (z, y), t)
    if backward:
        gt, gz, gw = made("gt", 8, 6), made("gz", 8, 6), made("gw", 6, 4)
        making.put("bwd", "m.sub.add", "out0", gt, api="torch.add")
        making.put("bwd", "m.sub.add", "in0", gz, api="torch.add")
        making.put("bwd", "m.sub.linear", "in1", gw, api="torch.nn.functional.linear")
        making.put("grad", "m.sub.weight", "grad", gw, kind="param")
    making.put("param", "m.sub.weight", "param", w, kind="param")
    return making


def judged(mine: StepValues, theirs: StepValues, *, measure: Any = exactly, **settings: Any) -> dict[str, Compared]:
    """What the judge says of each value, by ``phase/name:slot``."""
    divergence = Divergence(align(mine, theirs, NameMap()), measure=measure, **settings)
    return {place_of(row): row for row in divergence.rows}


def place_of(row: Compared) -> str:
    value = row.run_value or row.ref_value
    assert value is not None
    return f"{value.site.phase}/{value.site.name.removeprefix('m.sub.')}:{value.site.slot}"


def judgements(rows: Mapping[str, Compared]) -> dict[str, str]:
    return {place: row.judgement for place, row in rows.items() if row.judgement != "equal"}
