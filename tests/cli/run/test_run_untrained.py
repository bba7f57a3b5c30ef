"""A job that never updates is a finding; one that updates by itself, or ends early, is none."""

from __future__ import annotations

import pytest
from tests.forked_scripts import run_watched

from trueline.cli.run_end import watched
from trueline.judge.check_run import check

SCRIPT = """
import sys, torch, torch.distributed as dist, torch.distributed.fsdp
from torch import nn
kind, update = sys.argv[1:]
if kind != "single":
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 4)
net = model
if kind == "ddp":
    net = nn.parallel.DistributedDataParallel(model)
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard
    net = fully_shard(model)
if kind == "fsdp1":
    net = torch.distributed.fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for _ in range(1 if update == "once" else 6):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    if update == "by-hand":
        with torch.no_grad():
            for param in net.parameters():
                param.data -= 0.1 * param.grad
    if update == "step":
        optimizer.step()
if update == "raises":
    raise RuntimeError("the disk is full")
if kind != "single":
    dist.destroy_process_group()
"""


def run_of(tmp_path, kind, update):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    run_watched(script, kind, update, out=tmp_path / "run", world_size=1 if kind == "single" else 2)
    return str(tmp_path / "run")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "where"), [("single", ""), ("ddp", " on 2 ranks"), ("fsdp", " on 2 ranks"), ("fsdp1", " on 2 ranks")]
)
def test_an_update_that_is_never_made_is_an_error_with_what_to_do(tmp_path, kind, where):
    out = run_of(tmp_path, kind, "never")
    report = check(out)
    (finding,) = report.findings
    assert finding.claim == (
        f"6 backward passes{where}, and no update: no `optimizer.step()` was called, the weights of `Linear` never "
        "changed."
    )
    assert (finding.code, finding.severity, report.exit_code) == ("no-update", "error", 1)
    assert finding.ranks == ((0,) if kind == "single" else (0, 1))
    assert "`optimizer.step()`" in finding.next[0]
    assert finding.claim.rstrip(".") in watched(out, before={})


@pytest.mark.parametrize("update", ["step", "by-hand", "once"])
def test_a_job_that_updates_in_any_way_or_has_one_backward_pass_is_not_accused(tmp_path, update):
    assert "no-update" not in {finding.code for finding in check(run_of(tmp_path, "ddp", update)).findings}
