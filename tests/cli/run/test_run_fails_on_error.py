"""`trueline run --fail-on-error`: an exit code of its own for a job that ended well with an error open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trueline.judge.catalogue import EXIT_CODES

BIN = Path(sys.executable).parent

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
spoilt_rank, status = int(sys.argv[1]), int(sys.argv[2])
several = dist.is_torchelastic_launched()
if several:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 4)
net = nn.parallel.DistributedDataParallel(model) if several else model
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for step in range(12):
    x = torch.randn(8, 4)
    if step == 11 and (dist.get_rank() if several else 0) == spoilt_rank:
        x[0, 0] = float("nan")
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if several:
    dist.destroy_process_group()
sys.exit(status)
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def ended(*options, words=(), spoilt_rank, status=0):
        command = [*words, str(path), str(spoilt_rank), str(status)]
        run = [str(BIN / "trueline"), "run", "--out", str(tmp_path / "run"), *options, "--", *command]
        return subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)

    return ended


@pytest.mark.parametrize("asked", [("--fail-on-error",), ("--set", "fail_on_error=true")])
def test_an_error_that_is_open_at_a_good_end_is_4_and_named(job, asked):
    ended = job(*asked, words=[sys.executable], spoilt_rank=0)
    assert ended.returncode == 4, ended.stderr
    assert "trueline: exit code 4, as an error is open: error " in ended.stderr


@pytest.mark.parametrize(("spoilt_rank", "status"), [(-1, 0), (0, 7)])
def test_a_job_without_an_error_or_with_a_status_of_its_own_ends_as_it_did(job, spoilt_rank, status):
    ended = job("--fail-on-error", words=[sys.executable], spoilt_rank=spoilt_rank, status=status)
    assert ended.returncode == status, ended.stderr
    assert "exit code 4" not in ended.stderr


def test_unasked_the_command_alone_decides(job):
    assert job(words=[sys.executable], spoilt_rank=0).returncode == 0


def test_of_several_ranks_below_torchrun_one_is_enough(job):
    launcher = [str(BIN / "torchrun"), "--nproc-per-node", "2"]
    ended = job("--fail-on-error", words=launcher, spoilt_rank=1)
    assert ended.returncode == 4, ended.stderr


def test_the_contract_has_a_row_for_every_exit_code():
    rows = Path("docs/contract.md").read_text(encoding="utf-8").splitlines()
    table = rows[rows.index("| exit code | means |") + 2 :]
    assert [int(row.split("|")[1]) for row in table[: len(EXIT_CODES)]] == list(EXIT_CODES) == [0, 1, 2, 3, 4]
