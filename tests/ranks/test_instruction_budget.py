"""What watching does in a step, counted in instructions of the interpreter: no clock, no matter what else runs here.

Who adds a law sees here what it costs, on the day it comes.
"""

from __future__ import annotations

import math
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from tests.interpreter import counted
from torch import nn

EVERY = 8
SETTLED = range(34, 64)
"""Steps that are looked at: the laws of the first steps are over by then, and from 40 to 60 some come once more."""

BUDGET = tomllib.loads(Path(__file__).with_name("instruction_budget.toml").read_text())
SLACK = 1.25
"""A budget may be so much above what is measured, or a law could come for free; versions of Python differ by less."""


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(rank, world, out):
    """The work of opening a Run, and of the settled steps, by whether they are sampled."""
    import trueline

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 16), *(Block(16) for _ in range(4)), nn.Linear(16, 64))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    draws = torch.Generator().manual_seed(rank)
    with counted() as opening:
        watch = trueline.watch(ddp, optimizer, out=out, plan={"every": EVERY})
    watch._recorder.safe_sink._sink._rows._seal_at_s = math.inf  # after so many steps, not so much time

    def step():
        ids = torch.randint(0, 64, (4, 17), generator=draws)
        logits = ddp(ids[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    steps = {True: [], False: []}
    for number in range(SETTLED.stop):
        sampled = number % EVERY == 0
        if number % EVERY == 1:  # taken together with the one before: it is chance in which of them the sum is read
            continue
        with counted() as work:
            step()
            if sampled:
                for record in watch._recorder._backlog._written:
                    assert record.pending.wait(60)
                step()
        if number in SETTLED:
            steps[sampled].append(work)
    watch.close()
    return opening, steps[False], steps[True]


@pytest.fixture(scope="module")
def work(two, tmp_path_factory):
    """By kind what the first rank did: of settled steps the one in the middle, and that of most work. To a sampled step
    belongs the one after it.
    """
    opening, plain, sampled = two.run(train, str(tmp_path_factory.mktemp("counted") / "run"))[0]
    plain, sampled = (sorted(steps, key=attrgetter("instructions")) for steps in (plain, sampled))
    return {
        "opening": opening,
        "step": plain[len(plain) // 2],
        "step_with_laws": plain[-1],
        "sampled": sampled[0],
        "sampled_with_laws": sampled[-1],
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", BUDGET)
def test_watching_does_no_more_than_its_budget(work, kind):
    budget, spent = BUDGET[kind], work[kind]
    assert spent.instructions <= budget["instructions"], str(spent)
    assert spent.c_calls <= budget["c_calls"], str(spent)


@pytest.mark.parametrize("kind", BUDGET)
def test_a_budget_is_no_more_than_what_is_done_asks_for(work, kind):
    budget, spent = BUDGET[kind], work[kind]
    assert budget["instructions"] <= SLACK * spent.instructions, f"lower it: {spent}"
    assert budget["c_calls"] <= SLACK * spent.c_calls, f"lower it: {spent}"
