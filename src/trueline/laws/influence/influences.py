"""Influences that must not be (``schema/columns/influence.py``): the rows a Run has of them, and their findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from trueline.judge.compared_ranks import MAX_SITES
from trueline.schema.columns.influence import (
    DOUBTS,
    NO_LOGITS,
    NO_TOKENS,
    NOT_MIXED,
    NOT_NEXT,
    Influence,
    OrderInfluence,
    RowInfluence,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.judged import NotRun
from trueline.schema.site import Site
from trueline.store.reader import Run

LEAKS = ("influence-leak", "batch-leak")
SHARED = "what all ranks share (mask, order, batch, padding)"
SHARED_OF_ONE = "whether mask, order, batch and padding act on the loss as they should"
"""The same of one process."""

_TRIAL = "`trueline trial batch -- COMMAND`"
_OF_GRADIENT = (
    "whether the gradient is that of the loss (other laws take batches of a torch DataLoader, and none was seen): "
    "`trueline trial batch --law gradient -- COMMAND`"
)

_NOT_APPLICABLE = (NO_LOGITS, NOT_NEXT, NO_TOKENS, NOT_MIXED)
"""Doubts of models of another kind, of which nothing is left open."""

InfluenceRow = TypeVar("InfluenceRow", Influence, RowInfluence, OrderInfluence)

StepRank = tuple[int, int]
"""Step and rank."""


def known_influences(run: Run, column: str, row_type: Callable[..., InfluenceRow]) -> Mapping[StepRank, InfluenceRow]:
    """Rows of ``column`` that nothing makes doubtful, each as a ``row_type``. Raises ``CannotTell`` where there is
    none.
    """
    rows = {key: row_type(*map(float, values)) for key, values in run.lists(column).items() if len(values)}
    if not rows:
        raise CannotTell(
            "the plan names no step at which to look (preset `laws`, or `influence`), or no backward pass was seen "
            "there",
            reason="not-recorded",
        )
    certain = {key: row for key, row in rows.items() if row.doubt == 0}
    if not certain:
        doubt = int(next(iter(rows.values())).doubt)
        raise CannotTell(DOUBTS[doubt], reason="by-design" if doubt in _NOT_APPLICABLE else "undecidable")
    return certain


def unlooked(run: Run, not_run: Sequence[NotRun]) -> tuple[str, ...]:
    """Advice to look at ``SHARED`` with the command that does; where somebody looked already, advice to look
    further.
    """
    left_out = [entry for entry in not_run if entry.check in LEAKS]
    if not run.steps.size or any(entry.reason == "no-data" for entry in left_out):
        return ()
    # a process alone shares nothing with others
    subject = SHARED_OF_ONE if run.world_size == 1 else SHARED
    has_loader = any(env.data for env in run.env.values())
    if len(left_out) < 2:
        advice = f"how it goes by the batch: {_TRIAL}" if has_loader else _OF_GRADIENT
        return (f"If the loss is worse than it should be all the same, look {advice}",)
    if any(entry.reason != "not-recorded" for entry in left_out):
        why = next(entry.why for entry in left_out if entry.reason != "not-recorded")
        advice = f"at batch and padding: {_TRIAL}" if has_loader else _OF_GRADIENT
        return (f"Not looked at: {subject}: {why}. Look {advice}",)
    plans = [run.manifest.plan, *(revision.plan for revision in run.manifest.plans)]
    if any(plan.get("preset") == "laws" or plan.get("influence") is not None for plan in plans):
        return (f"Not looked at: {subject}: no backward pass was seen at the step that the plan names.",)
    return (f"Not looked at: {subject}. To look: `trueline run --plan laws -- COMMAND`",)


def leak_finding(
    code: str,
    severity: Severity,
    claim: str,
    at: Collection[StepRank],
    share: float,
    *,
    unit: str,
    advice: tuple[str, ...],
    kind: str = "",
) -> Finding:
    """Finding of gradients that must be 0 and are up to ``share`` of the largest."""
    steps, ranks = sorted({step for step, _ in at}), tuple(sorted({rank for _, rank in at}))
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step, rank in sorted(at))[:MAX_SITES],
        measured=share,
        expected=0.0,
        unit=unit,
        false_alarm_rate=0.0,
        evidence={"kind": kind} if kind else {},
        next=advice,
    )
