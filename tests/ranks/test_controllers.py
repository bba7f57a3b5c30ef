"""Controllers that start a job and act on what is found in it, in real processes: torchelastic's agent, whose worker
computes NaN from step 3 on until it is restarted, and a driver of Ray, whose two ranks read the same samples from then
on. And two healthy replicas of torchft, one of which is killed and comes back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys

import pytest

import trueline

MOST = 2000
"""Steps within which a controller has to be told: a minute and more."""

TRAINING = """
import sys, time, torch, trueline
from torch import nn

def train(out, *, rank, world, healthy, first, ends):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    saved = f"{out}-{first}.pt"
    if first:
        model.load_state_dict(torch.load(saved))
    model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, resume=first > 0, step=first)
    for step in range(first, 2000):
        faulty = step >= 3 and not healthy
        seed = 2 * step + (0 if faulty else rank)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        loss = model(x).square().mean() * (float("nan") if world == 1 and faulty else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if world == 1 and step < 6:
            torch.save(model.state_dict(), f"{out}-{step + 1}.pt")
        time.sleep(0.05)
        if ends(step):
            break
    watch.close()
    return step
"""

TELLS = """
import json, sys, time, trueline
from pathlib import Path
out, folder, python = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
told = []

def tell(verdict):
    words = ("code", "severity", "ranks", "step", "last_clean_step", "node", "false_alarm_bound")
    told.append({word: getattr(verdict, word) for word in words})
"""

WORKER = """
import os
from pathlib import Path

out, again = sys.argv[1], Path(sys.argv[2])
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def ends(step):
    if start == 0 and again.exists():
        raise RuntimeError("the controller asks for a restart")
    return start == 1 and step >= first + 4

first = int(again.read_text()) if start else 0
train(out, rank=0, world=1, healthy=start == 1, first=first, ends=ends)
"""

AGENT = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
again = folder / "again"

def act(verdict):
    tell(verdict)
    if not again.exists():
        (folder / "new").write_text(str(verdict.last_clean_step + 1))
        (folder / "new").rename(again)

with trueline.on_finding(act, run=out):
    one = dict(min_nodes=1, max_nodes=1, nproc_per_node=1, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    config = LaunchConfig(**one, max_restarts=1, monitor_interval=0.1, run_id="job")
    elastic_launch(config, python)(str(folder / "worker.py"), out, str(again))
print(json.dumps({"told": told, "starts": [one.step for one in trueline.open_run(out).manifest.attempts]}))
"""

DRIVER = """
assert "torch" not in sys.modules, "a driver need not have it"
import ray

@ray.remote(num_cpus=1, max_concurrency=2)
class Rank:
    def __init__(self, folder, rank):
        sys.path.insert(0, folder)
        self.folder, self.rank, self.stopped = folder, rank, False

    def stop(self):
        self.stopped = True

    def train(self, out):
        import torch, torch.distributed as dist
        from training import train
        dist.init_process_group("gloo", f"file://{self.folder}/store", rank=self.rank, world_size=2)

        def ends(step):
            asked = torch.tensor([float(self.stopped)])
            dist.all_reduce(asked)
            return bool(asked)

        steps = train(out, rank=self.rank, world=2, healthy=False, first=0, ends=ends)
        dist.destroy_process_group()
        return steps

def act(verdict):
    tell(verdict)
    ray.get([rank.stop.remote() for rank in ranks])

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
ranks = [Rank.remote(str(folder), rank) for rank in range(2)]
with trueline.on_finding(act, run=out):
    steps = ray.get([rank.train.remote(out) for rank in ranks])
ray.shutdown()
print(json.dumps({"told": told, "steps": steps}))
"""


REPLICA = """
import os, time, torch, trueline
from datetime import timedelta
from pathlib import Path
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

number, out, folder, dies_at = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(0)
model = nn.Linear(4, 2)
adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

def load(states):
    model.load_state_dict(states["model"])
    adam.load_state_dict(states["adam"])

given = dict(lighthouse_addr=os.environ["LIGHTHOUSE"], store_addr="localhost", store_port=int(os.environ["STORE"]))
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict()},
    replica_id=number,
    rank=0,
    world_size=1,
    **given,
)
replica = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, adam)
watch = trueline.watch(replica, adam, out=out)
stop, steps, together = folder / "stop", 0, 0
while not (stop.exists() and manager.current_step() >= int(stop.read_text())) and steps < 2000:
    step = manager.current_step()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + ord(number)))
    optimizer.zero_grad()
    replica(x).square().mean().backward()
    optimizer.step()
    steps, together = steps + 1, together + (manager.num_participants() == 2)
    if steps == dies_at:
        os._exit(9)
    if dies_at < 0 and together == 4:
        (folder / "new").write_text(str(manager.current_step() + 6))
        (folder / "new").rename(stop)
    time.sleep(0.2)
watch.close()
manager.shutdown()
print(number, steps, together, sum(param.double().sum().item() for param in model.parameters()).hex(), flush=True)
os._exit(0)
"""

LIGHTHOUSE = """
import os, subprocess
from torch.distributed import TCPStore
from torchft._torchft import LighthouseServer

times = dict(join_timeout_ms=2000, quorum_tick_ms=50, heartbeat_timeout_ms=2000)
lighthouse, stores = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, **times), []

def replica(number, name, dies_at):
    stores.append(TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
    environ = os.environ | {"LIGHTHOUSE": lighthouse.address(), "STORE": str(stores[-1].port)}
    words = [python, folder / "replica.py", number, out + name, folder, dies_at]
    return subprocess.Popen([*map(str, words)], env=environ, stdout=subprocess.PIPE, text=True)

with trueline.on_finding(tell, run=out + "-a"):
    stays, leaves = replica("a", "-a", 0), replica("b", "-b", 5)
    assert leaves.wait() == 9
    comes = replica("b", "-again", -1)
    ended = [process.communicate()[0].splitlines()[-1].split() for process in (stays, comes)]
lighthouse.shutdown()
print(json.dumps({"told": told, "ended": ended}))
"""


def controlled(tmp_path, script, python=sys.executable):
    """What the controller ``script`` prints when its job has ended; ``python`` runs it and what it starts."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "worker.py").write_text(TRAINING + WORKER)
    (tmp_path / "replica.py").write_text("import sys\n" + REPLICA)
    (tmp_path / "controller.py").write_text(TELLS + script)
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [python, tmp_path / "controller.py", tmp_path / "run", tmp_path, python]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def is_the_fault(verdict, *, code, ranks, bound):
    assert (verdict["code"], verdict["severity"], verdict["ranks"]) == (code, "error", ranks)
    assert (verdict["step"], verdict["last_clean_step"], verdict["false_alarm_bound"]) == (3, 2, bound)
    assert verdict["node"] == socket.gethostname()


@pytest.mark.in_turn
def test_torchelastics_agent_restarts_from_the_last_clean_step_and_is_told_no_more(tmp_path, python):
    said = controlled(tmp_path, AGENT, python)
    is_the_fault(said["told"][0], code="worker-nonfinite", ranks=[0], bound=0.0)
    assert said["starts"] == [0, 3]
    assert {verdict["step"] for verdict in said["told"] if verdict["code"] != "job-died"} == {3}
    codes = [verdict["code"] for verdict in said["told"]]
    assert len({*codes}) == len(codes), "the second start is clean"


@pytest.mark.in_turn
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_driver_of_ray_stops_its_actors(tmp_path):
    said = controlled(tmp_path, DRIVER)
    is_the_fault(said["told"][0], code="duplicate-data", ranks=[0, 1], bound=1e-6)
    assert 3 < said["steps"][0] == said["steps"][1] < MOST - 1


@pytest.mark.in_turn
@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")
def test_replicas_of_torchft_that_leave_and_rejoin_are_no_drift(tmp_path):
    said = controlled(tmp_path, LIGHTHOUSE)
    (_, steps, together, weights), (_, steps_again, _, weights_again) = said["ended"]
    assert weights == weights_again, "what rejoins is healed"
    assert int(steps) > int(steps_again) >= 8 <= int(together)
    assert said["told"] == []
    for name, num_steps in (("a", int(steps)), ("b", 5), ("again", int(steps_again))):
        report = trueline.check(tmp_path / f"run-{name}")
        assert [finding.code for finding in report.findings if finding.is_grave] == []
        assert report.judged.num_steps == num_steps
