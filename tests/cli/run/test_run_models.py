"""Several models that one script trains: all are watched, each with its name, in one Run."""

from __future__ import annotations

import json

import pytest
import torch
from tests.cli.in_process import trueline as command
from tests.forked_scripts import run_unwatched, run_watched
from torch import nn

import trueline
from trueline.demo.ranks import Ranks
from trueline.schema.errors import RunExistsError

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
make = lambda i, o: nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)))
painter, critic = make(4, 8), make(8, 1)
paints = torch.optim.Adam(painter.parameters())
judges = torch.optim.Adam(critic.parameters())
teacher, other = nn.Linear(8, 8), nn.Linear(4, 4)
seen = torch.Generator().manual_seed(rank)
bce = nn.functional.binary_cross_entropy_with_logits
for step in range(6):
    real = torch.randn(16, 8, generator=seen)
    fake = painter(torch.randn(16, 4, generator=seen))
    judges.zero_grad()
    loss = bce(critic(torch.cat([real, fake.detach()])), torch.cat([torch.ones(16, 1), torch.zeros(16, 1)]))
    loss.backward()
    judges.step()
    paints.zero_grad()
    with torch.no_grad():
        aim = teacher(real)
    bce(critic(fake), torch.ones(16, 1)).backward()
    paints.step()
    if sys.argv[1] == "extra" and rank == 1 and step > 1:
        if step == 2:
            learns = torch.optim.SGD(other.parameters(), lr=0.1)
        other(torch.ones(2, 4)).sum().backward()
        learns.step()
print(rank, repr(sum(p.double().sum().item() for m in (painter, critic, other) for p in m.parameters())))
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["same", "extra"])
def test_all_models_are_watched_and_one_of_a_single_rank_is_told(tmp_path, kind, monkeypatch, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with Ranks(2) as ranks:
        bare = run_unwatched(ranks, script, kind)
    assert run_watched(script, kind, out=tmp_path / "run") == bare
    run = trueline.open_run(tmp_path / "run")
    assert run.manifest.model == "painter"
    assert list(run.models) == ["critic"]
    for each in (run, trueline.open_run(run.models["critic"])):
        assert each.manifest.adapter == "ddp"
        assert each.steps.tolist() == list(range(6))
        assert each.pivot("grad_norm")[1].all()
        assert each.pivot("loss")[1].all()
    told = [finding.claim for finding in run.live_findings]
    assert told == ([] if kind == "same" else [told[0]])
    assert kind == "same" or told[0].startswith("Model 'other' is trained on rank 1 and not watched")
    code, out, _ = command(monkeypatch, capsys, "check", tmp_path / "run")
    assert "Model critic: " in out
    assert code == 0
    assert ("Watching stopped in part at step" in " ".join(out.split())) == (kind == "extra")
    assert "critic (trueline info" in " ".join(command(monkeypatch, capsys, "info", tmp_path / "run")[1].split())


def test_watches_of_several_models_share_a_run_by_name(tmp_path):
    models = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    names = ["", "", "actor"]
    watches = [
        trueline.watch(model, optimizer, out=tmp_path / "run", name=name)
        for model, optimizer, name in zip(models, optimizers, names, strict=True)
    ]
    with pytest.raises(RunExistsError):
        trueline.watch(models[0], optimizers[0], out=tmp_path / "run")
    for step in range(3):
        for model, optimizer in list(zip(models, optimizers, strict=True))[: 3 - step % 2]:
            (model(torch.ones(1, 2)).sum() * (step + 1)).backward()
            optimizer.step()
    for watch in watches:
        watch.close()
    run = trueline.open_run(tmp_path / "run")
    assert list(run.models) == ["Linear", "actor"]
    runs = [run, *(trueline.open_run(path) for path in run.models.values())]
    assert [each.steps.tolist() for each in runs] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    page = trueline.report([tmp_path / "run"], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "actor" in page
    trueline.watch(models[0], optimizers[0], out=tmp_path / "run", overwrite=True).close()
    assert not trueline.open_run(tmp_path / "run").models


TOWERS = """
import sys, torch, torch.distributed as dist
from torch import nn
kind = sys.argv[1]
class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 4))
        self.scale = nn.Parameter(torch.ones(1))
    def encode_image(self, x): return nn.functional.normalize(self.image(x), dim=-1)
    def encode_text(self, x): return nn.functional.normalize(self.text(x), dim=-1)
    def forward(self, x, ids): return self.encode_image(x), self.encode_text(ids)
if kind != "alone":
    dist.init_process_group("gloo")
rank = 0 if kind == "alone" else dist.get_rank()
torch.manual_seed(0)
model = whole = Clip()
if kind in ("methods", "module", "by-hand"):
    model = nn.parallel.DistributedDataParallel(whole)
elif kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    register_fsdp_forward_method(model, "encode_image")
    register_fsdp_forward_method(model, "encode_text")
learns = torch.optim.Adam(model.parameters())
seen = torch.Generator().manual_seed(rank)
for step in range(8):
    x, ids = torch.randn(6, 8, generator=seen), torch.randint(9, (6, 3), generator=seen)
    if kind == "module":
        images, texts = model.module(x, ids)
    else:
        images, texts = whole.encode_image(x), whole.encode_text(ids)
    scale = 1.0 if kind == "fsdp2" else whole.scale
    nn.functional.cross_entropy(scale * images @ texts.T, torch.arange(6)).backward()
    if kind == "by-hand":
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= 2
    learns.step()
    learns.zero_grad()
print(rank, repr(sum(p.double().sum().item() for p in model.parameters() if kind != "fsdp2")))
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "adapter", "codes"),
    [
        ("methods", "ddp", ["gradient-not-reduced", "replica-drift"]),
        ("module", "ddp", ["gradient-not-reduced", "replica-drift"]),
        ("by-hand", "ddp", []),
        ("fsdp2", "fsdp2", []),
        ("alone", "single", []),
    ],
)
def test_a_model_whose_towers_are_called_one_by_one_is_watched_as_one(
    tmp_path, kind, adapter, codes, monkeypatch, capsys
):
    script = tmp_path / "train.py"
    script.write_text(TOWERS, encoding="utf-8")
    world_size = 1 if kind == "alone" else 2
    with Ranks(world_size) as ranks:
        bare = run_unwatched(ranks, script, kind)
    assert run_watched(script, kind, out=tmp_path / "run", world_size=world_size) == bare
    run = trueline.open_run(tmp_path / "run")
    assert (run.manifest.adapter, list(run.models), run.steps.tolist()) == (adapter, [], list(range(8)))
    first = 1 if kind == "fsdp2" else 0  # weights are gathered at the first call: watching begins at the update
    samples = run.lists("sample_digests")
    assert {step for step, _ in samples} == set(range(first, 8))
    assert {len(digests) for digests in samples.values()} == {6}
    assert set(run.pivot("num_micro")[0][first:].flatten()) == {1.0}
    assert run.pivot("loss")[1][first:].all()
    findings = json.loads(command(monkeypatch, capsys, "check", tmp_path / "run", "--json")[1])["findings"]
    assert sorted(finding["code"] for finding in findings if finding["severity"] == "error") == codes


LATER = """
import torch
from torch import nn
class First(nn.Linear): pass
class Later(nn.Linear): pass
for kind, updates in ((First, 30), (Later, 5)):
    model = kind(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_model_that_is_made_later_is_watched_from_its_first_update_on(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LATER, encoding="utf-8")
    run_watched(script, out=tmp_path / "run", world_size=1)
    run = trueline.open_run(tmp_path / "run")
    assert [len(trueline.open_run(path).steps) for path in run.models.values()] == [5]
