"""A process that is forked off a watched rank ends, trains as it likes, and leaves the Run to its parent."""

from __future__ import annotations

import atexit
import os

import torch
from torch import nn

from trueline.demo.ranks import Ranks


def train(rank, world, out):
    """How a child ended that was forked after the third step and trained two more."""
    import trueline

    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statuses = []
    with trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "every": 1, "steps": [0, 6]}):

        def step():
            model(torch.randn(8, 4)).square().mean().backward()
            for param in model.parameters():
                torch.distributed.all_reduce(param.grad)
            optimizer.step()
            optimizer.zero_grad()

        for index in range(6):
            step()
            if index != 3:
                continue
            child = os.fork()
            if child == 0:
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
                atexit._run_exitfuncs()
                os._exit(7)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return statuses


def test_a_forked_child_ends_and_writes_nothing(tmp_path):
    import trueline

    with Ranks(2, timeout_s=600) as ranks:
        assert ranks.run(train, str(tmp_path / "run")) == [[7], [7]]
    run = trueline.open_run(tmp_path / "run")
    assert run.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert (run.problems, run.unclosed, run.live_findings) == ([], [], [])
    assert run.pivot("grad_norm")[1].all()
