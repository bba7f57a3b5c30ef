"""Replicas that part are dated by the last look at which they were equal, in short Runs, late, and at the end."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn


def train(rank, world, out, steps, at, how):
    """Rank 1 alone is wrong around the update of step ``at``."""
    import trueline
    from trueline.schema.plan import Plan

    every_step = Plan(every=1)  # by its budget, a slow machine would leave out the step of the finding
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with contextlib.suppress(ZeroDivisionError), trueline.watch(ddp, optimizer, out=out, plan=every_step):
        for step in range(steps):
            ddp(torch.randn(4, 4, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean().backward()
            wrong = rank == 1 and step >= at
            if wrong and how == "clips":
                torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
            if step == at and how == "interrupted":
                optimizer.register_step_pre_hook(lambda *_: 1 / 0)
            optimizer.step()
            if wrong and how == "writes":
                with torch.no_grad():
                    ddp.module.bias.add_(1e-3)
            optimizer.zero_grad()
    return []


def drift(ranks, out, *case):
    import trueline

    ranks.run(train, str(out), *case)
    run = trueline.open_run(out)
    return run, [finding for finding in trueline.check(run).findings if finding.code == "replica-drift"]


def test_a_run_of_a_few_steps_dates_it_to_the_step(two, tmp_path):
    _, (finding,) = drift(two, tmp_path / "run", 14, 11, "writes")
    assert finding.severity == "error"
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (11, 12)


def test_what_the_last_update_made_different_is_told(two, tmp_path):
    run, (finding,) = drift(two, tmp_path / "run", 6, 5, "writes")
    assert (finding.severity, finding.ranks, finding.step_first) == ("info", (0, 1), 5)
    assert run.steps.tolist() == list(range(6)), "the end is no step"


@pytest.mark.in_turn
def test_soon_after_a_finding_that_all_ranks_heard_of_replicas_are_looked_at(two, tmp_path):
    run, (finding,) = drift(two, tmp_path / "run", 120, 97, "clips")
    looks = sorted({step for step, _ in run.lists("param_digests")})
    heard = finding.step_first
    assert 98 < heard < 104, "the next look by itself would be at 104"
    assert set(range(heard, min(heard + 16, 120))) <= set(looks)
    assert finding.evidence["last_equal"] == 96


def test_an_update_that_never_ended_is_not_looked_at(two, tmp_path):
    run, findings = drift(two, tmp_path / "run", 6, 3, "interrupted")
    assert findings == []
    assert run.lists("closing_digests") == {}
