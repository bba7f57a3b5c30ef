"""Several models that one script trains: all are watched, each with its name, in one Run."""

from __future__ import annotations

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
