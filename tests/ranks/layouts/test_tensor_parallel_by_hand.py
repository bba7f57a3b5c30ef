"""Tensor parallelism written by hand, whose data-parallel groups have a Run each: what ranks of different groups hold
in copies is compared, what is cut between them is not.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trueline
from trueline.cli.run_end import _run as last_line

STEPS = 10


class Copied(torch.autograd.Function):
    """Into a layer that is cut by columns: backward sums the gradients of all parts."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Summed(torch.autograd.Function):
    """Out of a layer that is cut by rows."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Block(nn.Module):
    def __init__(self, part, parts, group):
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(64)
        self.up = nn.Parameter((torch.randn(128, 64) / 8).chunk(parts)[part].clone())
        self.up_bias = nn.Parameter(torch.zeros(128 // parts))  # begins equal on all ranks, and is cut
        self.down = nn.Parameter((torch.randn(64, 128) / 8).chunk(parts, 1)[part].clone())

    def forward(self, x):
        hidden = torch.relu(nn.functional.linear(Copied.apply(self.norm(x), self.group), self.up, self.up_bias))
        return x + Summed.apply(nn.functional.linear(hidden, self.down), self.group)


def train(rank, world, out, kind):
    """``clipped``: the second part clips its norms by another factor; ``written``: it writes to one at step 6;
    ``ensemble``: all ranks train a whole model of the same seed, on other data.
    """
    parts = 2
    part, worker = rank % parts, rank // parts
    of_parts = [dist.new_group([first, first + 1]) for first in range(0, world, parts)]
    of_workers = [dist.new_group(list(range(first, world, parts))) for first in range(parts)]
    torch.manual_seed(0)
    group = of_parts[worker]
    cut = (0, 1, None) if kind == "ensemble" else (part, parts, group)
    blocks = nn.Sequential(*(Block(*cut) for _ in range(2))) if kind != "ensemble" else nn.Sequential(nn.Linear(64, 64))
    model = nn.Sequential(nn.Linear(20, 64), blocks, nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch = trueline.watch(
        model, optimizer, out=out, plan={"every": 1, "params_every": 1}, process_group=of_workers[part]
    )
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + (rank if kind == "ensemble" else worker))
        x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 6, (8,), generator=generator)
        nn.functional.cross_entropy(model(x), y).backward()
        for param in model.parameters():
            dist.all_reduce(param.grad, group=of_workers[part])
            param.grad /= world // parts
        for name, param in model.named_parameters():
            if kind == "clipped" and part == 1 and not name.endswith(("up", "up_bias", "down")):
                param.grad *= 0.1
            if kind == "written" and part == 1 and step == 6 and name.endswith("0.norm.weight"):
                param.data *= 1.01
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


@pytest.fixture(params=[2, 4])
def ranks(request):
    """Tensor parallelism alone, and with two workers."""
    return request.getfixturevalue("two" if request.param == 2 else "four")


def found(ranks, out, kind):
    ranks.run(train, str(out), kind)
    return trueline.check(out)


def test_copies_that_another_factor_clips_on_one_part_part_at_the_first_update(ranks, tmp_path):
    report = found(ranks, tmp_path / "run", "clipped")
    (finding,) = [one for one in report.findings if one.is_grave]
    assert (finding.code, finding.severity) == ("replica-drift", "warning")
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (0, 1)
    names = set(finding.evidence["names"])
    assert {"1.0.norm.weight", "0.weight", "2.bias"} <= names
    assert not names & {"1.0.up", "1.0.up_bias", "1.0.down"}
    assert "at step 0 the optimizer of rank 1 received 0.1 times the gradient" in finding.claim.replace("At", "at")
    assert report.cause(0).cause == "copies-clipped-apart"


def test_a_copy_that_moved_with_the_others_and_is_then_written_to_is_dated(ranks, tmp_path):
    (finding,) = [one for one in found(ranks, tmp_path / "run", "written").findings if one.is_grave]
    assert (finding.code, finding.evidence["names"][0]) == ("replica-drift", "1.0.norm.weight")
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (5, 6)
    assert "received" not in finding.claim


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["healthy", "ensemble"])
def test_what_is_cut_and_models_that_train_apart_are_not_compared(ranks, tmp_path, kind):
    report = found(ranks, tmp_path / "run", kind)
    assert [one.code for one in report.findings if one.is_grave] == []
    assert ("replica-drift" in report.checks_run) == (kind == "healthy" or len(report.judged.ranks) == 4)
    if kind == "healthy":
        assert report.verdict.word == "No fault found"
        one_worker = len(report.judged.ranks) == 2
        assert ("Comparisons between workers do not apply" in report.verdict.line) == one_worker


def test_the_last_line_and_check_name_the_directories_of_all_groups(two, tmp_path):
    report = found(two, tmp_path / "run", "healthy")
    assert f"Run: {tmp_path / 'run'} and run.ranks-1 beside it." in last_line(str(tmp_path / "run"))
    assert any(f"{tmp_path / 'run'} and {tmp_path / 'run'}.ranks-1" in note for note in report.notes)
    assert not any("only one worker of such a group" in entry.why for entry in report.checks_not_run)
