"""What a run whose modules were fed made of the same values, beyond what rounding explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trueline.comparison.result import ComparedRow
from trueline.schema.site import Site
from trueline.store.reader import Run
from trueline.trials.op.proof import LIMIT

Pass = Literal["forward", "backward"]
OUTSIDE = "code outside of modules"
ValueKey = tuple[int | None, str, int, str, int, str]
"""Rank, phase, micro-batch, name, call and slot."""


@dataclass(frozen=True)
class RecordedValues:
    """The records of one step: the ``kind`` and ``module`` of each value, and the ``root`` of those that are one
    tensor, by ``ValueKey``.
    """

    kind: Mapping[ValueKey, str]
    module: Mapping[ValueKey, str]
    root: Mapping[ValueKey, tuple[int, int]]

    @classmethod
    def read(cls, run: Run, step: int) -> RecordedValues:
        """Read the records of ``run``."""
        columns = ("rank", "phase", "micro", "name", "call", "slot", "kind", "module", "row", "same_as")
        rows = run.records(steps=[step], columns=columns).to_pylist()
        keys = [(row["rank"], row["phase"], row["micro"], row["name"], row["call"], row["slot"]) for row in rows]
        return cls(
            {key: row["kind"] for key, row in zip(keys, rows, strict=True)},
            {key: _module_of(row) for key, row in zip(keys, rows, strict=True)},
            {
                key: (row["rank"], row["row"] if row["same_as"] is None else row["same_as"])
                for key, row in zip(keys, rows, strict=True)
            },
        )


def _module_of(row: Mapping[str, Any]) -> str:
    if row["kind"] == "module":
        return row["name"]
    return row["name"].rpartition(".")[0] if row["kind"] == "param" else row["module"] or OUTSIDE


@dataclass
class Wrong:
    """A ``module`` that makes something else in these ``passes``: first at ``site``, in the call ``api`` of its own
    code ('' where only the module as a whole was seen) on the line ``where``, by ``measured`` where rounding explains
    ``expected``. ``shared`` are others that use the tensor whose gradient differs, of which it may be as well.
    """

    module: str
    site: str
    api: str
    where: str
    measured: float
    expected: float
    passes: list[Pass] = field(default_factory=list[Pass])
    shared: list[str] = field(default_factory=list[str])


def wrong_modules(rows: Sequence[ComparedRow], recorded: RecordedValues) -> list[Wrong]:
    """In the order of execution, the innermost module each."""
    keyed = [(_key(row), row) for row in sorted(rows, key=lambda row: (row.rank or 0, row.place)) if row.site]
    differs = {key for key, row in keyed if row.judgement != "equal" and row.measured}
    wrong_by_module: dict[str, Wrong] = {}
    for key, row in keyed:
        direction = _pass(key)
        if direction is None or not row.measured or not _is_made(key, direction) or key not in recorded.kind:
            continue
        kind = recorded.kind[key]
        if key[1] == "grad" and kind != "param":
            continue  # what a script computes once gradients are there, as the mean of losses so far
        # ``compare`` blames a call inside where it can; a module as a whole is looked at by itself
        if row.judgement != "beyond" and not (
            kind == "module" and _is_wrong_as_a_whole(key, direction, row, recorded, differs)
        ):
            continue
        module = recorded.module[key]
        wrong = wrong_by_module.get(module)
        if wrong is None:
            assert row.site is not None
            api = row.api if kind == "op" else ""
            wrong_by_module[module] = wrong = Wrong(module, row.site, api, row.where, row.measured, row.expected or 0.0)
            if direction == "backward" and kind != "param":
                wrong.shared = _shared(key, module, recorded)
        if direction not in wrong.passes:
            wrong.passes.append(direction)
    return _innermost(list(wrong_by_module.values()))


def _key(row: ComparedRow) -> ValueKey:
    site = Site.parse(row.site or "")
    return site.rank, site.phase, site.micro, site.name, site.call, site.slot


def _pass(key: ValueKey) -> Pass | None:
    return {"fwd": "forward", "bwd": "backward", "grad": "backward"}.get(key[1])  # type: ignore[return-value]


def _is_made(key: ValueKey, direction: Pass) -> bool:
    """Return whether a call made the value: forward what it returned, backward the gradient of what it took."""
    return key[5].startswith("out") == (direction == "forward")


def _is_wrong_as_a_whole(
    key: ValueKey, direction: Pass, row: ComparedRow, recorded: RecordedValues, differs: set[Any]
) -> bool:
    """Return whether a module makes something else of the same values, though a call inside is given something else, or
    makes other calls: then ``compare`` leaves it to those.
    """
    is_large = bool(row.expected) and (row.measured or 0.0) > LIMIT * (row.expected or 0.0)
    return (
        row.judgement in ("propagated", "not-comparable")
        and is_large
        and not _is_given_others(key, direction, recorded, differs)
    )


def _is_given_others(key: ValueKey, direction: Pass, recorded: RecordedValues, differs: set[Any]) -> bool:
    """Return whether the module was given something else after all."""
    sources = [("fwd", False)] if direction == "forward" else [("fwd", False), ("bwd", True)]
    return any(
        (key[0], phase, *key[2:5], other_key[5]) in differs
        for other_key in recorded.kind
        if (other_key[0], *other_key[2:5]) == (key[0], *key[2:5])
        for phase, is_out in sources
        if other_key[1] == phase and other_key[5].startswith("out") == is_out
    )


def _shared(key: ValueKey, module: str, recorded: RecordedValues) -> list[str]:
    """Calls elsewhere that take the same tensor."""
    root = recorded.root[key]
    names = {
        other_key[3]
        for other_key, other_root in recorded.root.items()
        if other_root == root
        and other_key[1] == "bwd"
        and not other_key[5].startswith("out")
        and recorded.kind[other_key] == "op"
    }
    return sorted(name for name in names if not name.startswith(f"{module}."))


def _innermost(modules: Sequence[Wrong]) -> list[Wrong]:
    """Without a module as a whole that has a wrong one inside, and without one whose gradient differs by that of a
    tensor which another uses that is wrong forward already.
    """
    # a gradient is of the forward values: wrong ones make it wrong without a fault of backward
    forward = {wrong.module for wrong in modules if "forward" in wrong.passes}
    return [
        wrong
        for wrong in modules
        if (
            wrong.api or not any(inner.module.startswith(f"{wrong.module}.") for inner in modules if inner is not wrong)
        )
        and ("forward" in wrong.passes or not _by_another(wrong, forward))
    ]


def _by_another(wrong: Wrong, forward: set[str]) -> bool:
    site = Site.parse(wrong.site)
    return any(name.startswith(f"{module}.") for module in forward for name in (*wrong.shared, f"{site.name}."))
