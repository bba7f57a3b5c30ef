"""A job that dies and is started again goes on with its Run: real processes, real signals."""

from __future__ import annotations

import os
import subprocess

import pytest

import trueline
from trueline.schema.files.run_manifest import Attempt, Manifest, RankEnv
from trueline.store.writer import RunWriter

SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch import nn
dies_at, alone = int(sys.argv[1]), "RANK" not in os.environ
if not alone:  # torchrun 2.13 hands the addresses of the dead on to the next start, unless they have names of their own
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    own = dist.PrefixStore("start" + os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group("gloo", store=own, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
net = model if alone else nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = {"step": 0, "epoch": 0, "batch": 0}
again = os.path.exists("checkpoint.pt")
if again:
    state = torch.load("checkpoint.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
rows = torch.utils.data.TensorDataset(torch.rand(48, 3, generator=torch.Generator().manual_seed(1)))
sampler = torch.utils.data.DistributedSampler(rows, num_replicas=world, rank=rank)
loader = torch.utils.data.DataLoader(rows, batch_size=4, sampler=sampler)
step = state["step"]
for epoch in range(state["epoch"], 3):
    sampler.set_epoch(epoch)
    for batch, (x,) in enumerate(loader):
        if epoch == state["epoch"] and batch < state["batch"]:
            continue
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"{rank} {step} {loss.item()!r}\\n")
        sys.stdout.flush()
        step += 1
        if step % 5 == 0 and rank == 0:
            done = {"step": step, "epoch": epoch, "batch": batch + 1}
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **done}, "checkpoint.tmp")
            os.replace("checkpoint.tmp", "checkpoint.pt")
        if step == dies_at and not again and rank == world - 1:
            time.sleep(2)  # what is recorded is written by a thread: a kill costs what that still has
            os.kill(os.getpid(), signal.SIGKILL)
if not alone:
    dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")


def call(tmp_path, *words, **environment):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)


def printed_losses(printed, rank):
    """By step, the loss that the script said last."""
    lines = [line.split() for line in printed.splitlines()]
    return {int(step): float(loss) for owner, step, loss in lines if int(owner) == rank}


def test_a_killed_job_goes_on_where_its_optimizer_counts(tmp_path, warm_trueline, python):
    watched = [warm_trueline, "run", "--out", "run", "--plan", "modules", "--resume", "--", python, "train.py", "8"]
    first = call(tmp_path, *watched)
    assert first.returncode == -9
    assert len(trueline.open_run(tmp_path / "run").steps) >= 7
    again = call(tmp_path, *watched)
    assert again.returncode == 0
    assert again.stderr == (
        "trueline: watched model (single, 1 rank): 36 steps, gradients at 36. Run: run. Next: trueline check run\n"
    )
    run = trueline.open_run(tmp_path / "run")
    assert run.problems == []
    assert run.restarts == [5]
    told = printed_losses(first.stdout + again.stdout, 0)
    assert dict(zip(run.steps.tolist(), run.pivot("loss")[0][:, 0].tolist(), strict=True)) == told
    assert run.record_steps.tolist() == run.steps.tolist()
    assert any("goes on from step 5" in note for note in trueline.check(run).notes)


@pytest.mark.in_turn
def test_a_restart_by_torchelastic_goes_on_by_itself_and_is_no_finding(tmp_path, warm_trueline, python):
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = call(tmp_path, warm_trueline, "run", "--out", "run", "--", *torchrun, "train.py", "8", PYTHON_EXEC=python)
    assert done.returncode == 0, done.stderr
    run = trueline.open_run(tmp_path / "run")
    assert (run.problems, run.restarts, run.unclosed) == ([], [5], [])
    losses, measured = run.pivot("loss")
    assert measured.all()
    for rank in range(2):
        assert dict(zip(run.steps.tolist(), losses[:, rank].tolist(), strict=True)) == printed_losses(done.stdout, rank)
    assert {step for step, _ in run.lists("param_digests")} >= {0, 5}
    assert [finding.claim for finding in trueline.check(run).findings if finding.is_grave] == []


def test_a_start_with_another_number_of_workers_leaves_the_run_alone(tmp_path, warm_trueline, python):
    attempts = [Attempt(started_at="then")]
    writer = RunWriter(tmp_path / "run", rank=0)
    writer.describe(Manifest(world_size=2, adapter="ddp", started_at="then", attempts=attempts), RankEnv())
    writer.write({"step": 0, "loss": 1.0})
    writer.close()
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    watched = [warm_trueline, "run", "--out", "run", "--resume", "--", python, "train.py", "-1"]
    done = call(tmp_path, *watched)
    assert done.returncode == 0
    why, end = done.stderr.splitlines()
    assert "has workers 2, and this start of the job has 1" in why
    assert end.startswith("trueline: NOTHING WAS WATCHED: Run '")
    assert "has workers 2, and this start of the job has 1" in end
    done = call(tmp_path, *watched, TORCHELASTIC_RESTART_COUNT="1")
    why, end = done.stderr.splitlines()
    assert "This start is watched in" in why
    assert end.startswith("trueline: watched model (single, 1 rank): ")
    assert end.endswith(" Run: run.restart1. Next: trueline check run.restart1")
    assert len(trueline.open_run(tmp_path / "run.restart1").steps) > 0
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before
