"""Running statistics, beside the model and in it, that begin anew at a restart."""

import gc
import json

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import PARAMS, write_run, write_starts
from torch import nn

import trueline
from trueline.laws.restarts import restart_statistics
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

STEPS = 6
NAMES = ["Normalize", "mean", "var", "count"]


class Normalize:
    """Less the running mean of its dict or attributes, by the running deviation."""

    def __init__(self, *, in_dict):
        self.parts = {"mean": torch.zeros(4), "std": torch.ones(4), "num": 0} if in_dict else None
        if not in_dict:
            self.mean, self.var, self.count = np.zeros(4, dtype=np.float32), np.ones(4, dtype=np.float32), 1e-4

    def __call__(self, x_BD):
        if self.parts is not None:
            self.parts["mean"], self.parts["num"] = self.parts["mean"].lerp(x_BD.mean(0), 0.1), self.parts["num"] + 8
            return x_BD - self.parts["mean"]
        self.mean, self.count = self.mean * 0.9 + 0.1 * x_BD.mean(0).numpy(), self.count + 8
        return x_BD - torch.from_numpy(self.mean)


def watched(folder, model, normalize, *, first=0):
    draws = torch.Generator().manual_seed(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=folder, step=first or None, resume=first > 0):
        for _ in range(STEPS):
            model(normalize(torch.randn(8, 4, generator=draws))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def told(run):
    return [
        (finding.evidence["kind"], finding.severity, finding.step_first) for finding in restart_statistics.check(run)
    ]


@pytest.mark.in_turn
@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("is_saved", [True, False])
def test_what_normalises_inputs_is_saved_or_not(tmp_path, in_dict, is_saved):
    torch.manual_seed(0)
    model, normalize = nn.Linear(4, 2), Normalize(in_dict=in_dict)
    gc.collect()  # another start is another process, which has no objects of this one
    watched(tmp_path / "run", model, normalize)
    if not is_saved:
        normalize.__init__(in_dict=in_dict)
    watched(tmp_path / "run", model, normalize, first=STEPS)
    run = trueline.open_run(tmp_path / "run")
    assert run.lists("running_counts")[2, 0].tolist() == [pytest.approx(24, abs=0.01)]
    assert told(run) == ([] if is_saved else [("count", "warning", STEPS)])


@pytest.mark.parametrize("is_loaded", [True, False])
def test_running_statistics_of_batch_norm(tmp_path, is_loaded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    first = {name: buffer.clone() for name, buffer in model.named_buffers()}
    watched(tmp_path / "run", model, lambda x: x)
    if not is_loaded:
        for name, buffer in model.named_buffers():
            buffer.copy_(first[name])
    watched(tmp_path / "run", model, lambda x: x, first=STEPS)
    run = trueline.open_run(tmp_path / "run")
    assert told(run) == ([] if is_loaded else [("buffers", "warning", STEPS)])


def starts_of(before, after, *, names=(NAMES,), weights=2, buffers=None):
    """Two starts with counts [N] by step; parameters are ``weights`` times as at first."""
    digests = np.full(len(PARAMS), 1, dtype=np.uint64)
    rows = [{(step, 0): {"running_counts": list(row)} for step, row in enumerate(before)}]
    rows.append({(len(before) + step, 0): {"running_counts": list(row)} for step, row in enumerate(after)})
    rows[0][0, 0] |= {"param_digests": digests, "running_facts": json.dumps(names)}
    rows[1][len(before), 0] |= {"param_digests": digests * weights, "running_facts": json.dumps(names)}
    for row, buffer in zip([*rows[0].values(), *rows[1].values()], buffers or (), strict=False):
        row["buffer_digests"] = np.array([buffer, 7], dtype=np.uint64)
    return [(0, rows[0]), (len(before), rows[1])]


UP = [[8.0], [16.0], [24.0], [32.0]]


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        (UP, [[8.0]], True),
        (UP, [[24.0]], False),  # the checkpoint is a little older than the end
        ([[8.0]] * 4, [[8.0]], False),  # of the whole data set: it does not run
        ([[8.0], [16.0], [8.0], [16.0]], [[8.0]], False),  # it begins anew in each epoch
        ([[8.0], [16.0], [24.0], [np.nan]], [[8.0]], False),  # the object is gone
        (UP[:2], [[8.0]], False),  # too few to know that it runs
    ],
)
def test_only_counts_that_run_and_fall_at_the_restart(tmp_path, before, after, is_told):
    assert bool(told(write_starts(tmp_path / "run", starts_of(before, after)))) is is_told


def test_of_two_objects_of_one_class_both_begin_anew(tmp_path):
    two = [[8.0, 80.0], [16.0, 160.0], [24.0, 240.0], [32.0, 320.0]]
    names = (NAMES, NAMES)
    assert len(told(write_starts(tmp_path / "both", starts_of(two, [[8.0, 16.0]], names=names)))) == 1
    assert told(write_starts(tmp_path / "order", starts_of(two, [[328.0, 40.0]], names=names))) == []


def test_a_job_that_begins_anew_as_a_whole_is_told_by_its_weights(tmp_path):
    assert told(write_starts(tmp_path / "run", starts_of(UP, [[8.0]], weights=1))) == []


@pytest.mark.parametrize(
    ("buffers", "is_told"), [([1, 2, 3, 4, 1], True), ([1, 2, 1, 4, 1], False), ([1, 2, 3, 4, 5], False)]
)
def test_buffers_that_were_never_as_at_first_again(tmp_path, buffers, is_told):
    run = write_starts(tmp_path / "run", starts_of(UP, [[40.0]], buffers=buffers))
    assert bool(told(run)) is is_told


def test_jobs_of_one_start_and_without_statistics_cannot_be_told(tmp_path):
    with pytest.raises(CannotTell, match="started once"):
        restart_statistics.check(write_run(tmp_path / "one", {(0, 0): {}}))
    with pytest.raises(CannotTell, match="no running statistics"):
        restart_statistics.check(write_starts(tmp_path / "two", [(0, {(0, 0): {}}), (1, {(1, 0): {}})]))


def test_a_proxy_beside_the_statistics_is_not_asked_what_it_is(tmp_path):
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    normalize = Normalize(in_dict=False)
    normalize.mean_of_task, normalize.num_of_task = Proxy(), Proxy()
    watched(tmp_path / "run", nn.Linear(4, 2), normalize)
    facts = [json.loads(text) for _, text in Run(tmp_path / "run").texts("running_facts").items()]
    assert NAMES in facts[0]
