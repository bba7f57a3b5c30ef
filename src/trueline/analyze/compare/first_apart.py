"""The first value whose bits differ between two Runs of one job, and whether the call at it made the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trueline.analyze.compare.result import ComparedRow
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
    given = [row for row in apart if row is not first and row.site is not None and _call(row.site) == call]
    is_given = _is_given(first.site) or any(_is_given(row.site) for row in given if row.site is not None)
    role: Literal["made", "given"] = "given" if is_given else "made"
    return Part(first.site, first.api, role, first.judgement, first.measured)


def _differs(row: ComparedRow) -> bool:
    return row.judgement != "equal" and bool(row.measured)


def _call(site: str) -> tuple[object, ...]:
    each = Site.parse(site)
    return (each.step, each.rank, each.phase, each.name, each.call)


def _is_given(site: str) -> bool:
    """Whether it goes into a call: in the backward pass that is the gradient of what the call returned."""
    each = Site.parse(site)
    if each.phase == "bwd":
        return each.slot.startswith("out")
    return each.slot.startswith("in") or each.phase in ("batch", "param", "buffer")
