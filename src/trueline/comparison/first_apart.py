"""First value whose bits differ between two Runs of one job, and whether the call at it made the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trueline.comparison.result import ComparedRow
from trueline.schema.site import Site


@dataclass(frozen=True)
class FirstDifference:
    """First value that differs between two runs.

    ``api`` is the function at its ``site``; ``role`` tells whether the call ``made`` the value or was ``given`` it (or
    another one that differs); ``judgement`` is that of ``compare`` on its size.
    """

    site: str
    api: str
    role: Literal["made", "given"]
    judgement: str
    measured: float | None


def first_differing_value(rows: Iterable[ComparedRow]) -> FirstDifference | None:
    """First value whose bits differ, of the rank in which it comes earliest; None for equal Runs."""
    all_rows = list(rows)
    differing = [row for row in all_rows if row.site is not None and _differs(row)]
    if not differing:
        return None
    first = min(differing, key=lambda row: (row.step, row.place))
    assert first.site is not None
    site = Site.parse(first.site)
    call = (site.step, site.rank, site.phase, site.name, site.call)
    # A value that could not be compared may differ, too.
    unlike = [row.site for row in all_rows if row is not first and row.site is not None and row.judgement != "equal"]
    is_given = _is_given(first.site) or any(
        _is_given(unlike_site) and _call_of_site(unlike_site) == call for unlike_site in unlike
    )
    is_given |= any(_is_weight_of(unlike_site, site) for unlike_site in unlike)
    role: Literal["made", "given"] = "given" if is_given else "made"
    return FirstDifference(first.site, first.api, role, first.judgement, first.measured)


def _differs(row: ComparedRow) -> bool:
    """Tell whether bits differ, also where the difference is too small for statistics to measure."""
    return row.judgement not in ("equal", "not-comparable") or bool(row.measured)


def _is_weight_of(site: str, call: Site) -> bool:
    """Tell whether ``site`` is a parameter, at the step and rank of ``call``, of the module that is called."""
    param = Site.parse(site)
    same_step = (param.step, param.rank, param.phase) == (call.step, call.rank, "param")
    return same_step and param.name.startswith(f"{call.name}.")


def _call_of_site(site: str) -> tuple[object, ...]:
    parsed = Site.parse(site)
    return (parsed.step, parsed.rank, parsed.phase, parsed.name, parsed.call)


def _is_given(site: str) -> bool:
    """Tell whether a value goes into a call, as in the backward pass the gradient of the call's result does."""
    parsed = Site.parse(site)
    if parsed.phase == "bwd":
        return parsed.slot.startswith("out")
    return parsed.slot.startswith("in") or parsed.phase in ("batch", "param", "buffer")
