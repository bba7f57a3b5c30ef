"""Finding on a call that returned other numbers for equal tensors in two Runs of one job."""

from __future__ import annotations

from collections.abc import Iterable

from trueline.comparison.first_apart import FirstDifference, first_differing_value
from trueline.comparison.result import ComparedRow
from trueline.judge.actions import Commands
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.store.reader import Run

_SIZES = {"within": "as much as another order of the same sums explains"}
_NEXT = (
    "Name all such operations, and how often they differ: `trueline trial repeat --in-place -- COMMAND`",
    "trueline.seed_all(1234, deterministic=True) chooses deterministic forms where there are any.",
)


def not_repeating(rows: Iterable[ComparedRow], run: Run, ref: Run) -> list[Finding]:
    """Finding on the call that made the first value whose bits differ, from equal tensors; else [].

    Both Runs must be of one job (command, versions, switches, devices) and have fingerprints. The finding is
    information: between two Runs the code may have been changed.
    """
    if not _is_one_job(run, ref):
        return []
    part = first_differing_value(rows)
    fill = Commands(run.path, tuple(run.manifest.argv)).filled
    return [] if part is None or part.role != "made" else [_finding(part, tuple(map(fill, _NEXT)))]


def _is_one_job(run: Run, ref: Run) -> bool:
    if any(side.manifest.plan.get("depth") != "fingerprint" for side in (run, ref)):
        return False
    setups = [{rank: (env.device, env.versions, env.flags) for rank, env in side.env.items()} for side in (run, ref)]
    return bool(setups[0]) and setups[0] == setups[1] and run.manifest.command == ref.manifest.command


def _finding(part: FirstDifference, next_: tuple[str, ...]) -> Finding:
    site = Site.parse(part.site)
    size = _SIZES.get(part.judgement, "by more than rounding explains")
    return Finding(
        code="nondeterministic-op",
        severity="info",
        claim=f"{part.api or 'A call'} at {part.site} makes something else of the same tensors in two runs of one job, "
        f"{size}: it does not repeat itself, or its code or another argument (a number, an index) is not the same.",
        ranks=(site.rank,),
        step_first=site.step,
        step_last=site.step,
        sites=(part.site,),
        measured=part.measured,
        expected=0.0,
        unit="relative L2 difference",
        evidence={"op": part.api},
        next=next_,
    )
