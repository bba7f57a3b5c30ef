"""The first value whose bits differ between two Runs of one job, and whether the call at it made the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trueline.comparison.result import ComparedRow
from trueline.schema.site import Site


@dataclass(frozen=True)
class Part:
    """The first value that differs between two runs: the ``site``, the function that was called, whether the call
    ``made`` it or was ``given`` it (or given something else that differs), and how ``compare`` judges its size.
    """

    site: str
    api: str
    role: Literal["made", "given"]
    judgement: str
    measured: float | None


def first_apart(rows: Iterable[ComparedRow]) -> Part | None:
    """The first value whose bits differ, of the rank in which that is earliest in its order; None where none does."""
    every = list(rows)
    apart = [row for row in every if row.site is not None and _differs(row)]
    if not apart:
        return None
    first = min(apart, key=lambda row: (row.step, row.place))
    assert first.site is not None
    site = Site.parse(first.site)
    call = (site.step, site.rank, site.phase, site.name, site.call)
    # What could not be compared may be what differs.
    unlike = [row.site for row in every if row is not first and row.site is not None and row.judgement != "equal"]
    is_given = _is_given(first.site) or any(_is_given(each) and _call(each) == call for each in unlike)
    is_given |= any(_is_weight_of(each, site) for each in unlike)
    role: Literal["made", "given"] = "given" if is_given else "made"
    return Part(first.site, first.api, role, first.judgement, first.measured)


def _differs(row: ComparedRow) -> bool:
    """Whether bits differ, also where that is too little for statistics to have a size of it."""
    return row.judgement not in ("equal", "not-comparable") or bool(row.measured)


def _is_weight_of(site: str, call: Site) -> bool:
    """Whether a parameter at the same step is of the module that is called."""
    each = Site.parse(site)
    same = (each.step, each.rank, each.phase) == (call.step, call.rank, "param")
    return same and each.name.startswith(f"{call.name}.")


def _call(site: str) -> tuple[object, ...]:
    each = Site.parse(site)
    return (each.step, each.rank, each.phase, each.name, each.call)


def _is_given(site: str) -> bool:
    """Whether it goes into a call: in the backward pass that is the gradient of what the call returned."""
    each = Site.parse(site)
    if each.phase == "bwd":
        return each.slot.startswith("out")
    return each.slot.startswith("in") or each.phase in ("batch", "param", "buffer")
