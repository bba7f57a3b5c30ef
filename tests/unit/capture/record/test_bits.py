"""Preset ``bits``: one fingerprint of every value of all calls, from the import of torch on, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.capture.record import early
from trueline.capture.record.buffer import UNFILLED
from trueline.comparison.arrange import Arrangement
from trueline.comparison.compare import compare, require_same_layout
from trueline.schema.errors import CannotTell, PlanError
from trueline.schema.plan import Plan
from trueline.tensor.digest import digest_of_memory

HERE = Path(__file__).name


class Scaled(torch.autograd.Function):
    """Its backward pass is written in Python, and so made of calls that are recorded."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        return x.mul(2.0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul(ctx.slope), None


class Job:
    """A script that makes data, order and schedule before its first forward pass; ``planted`` is done otherwise."""

    def __init__(self, planted: str = "") -> None:
        self.planted = planted

    def data(self):
        made = np.random.default_rng(1 if self.planted == "data" else 0).normal(size=(24, 6)).astype(np.float32)
        return torch.from_numpy(made)

    def loader(self, data):
        draw = torch.Generator().manual_seed(9 if self.planted == "order" else 4)
        return DataLoader(TensorDataset(data), batch_size=8, shuffle=True, generator=draw)

    def scale(self, data):
        scale = data.double().std().item() if self.planted == "cast" else data.std().item()
        return torch.full((), scale)

    def loss(self, model, x):
        hidden = model[0](x.t().t())
        hidden = F.gelu(hidden, approximate="tanh" if self.planted == "gelu" else "none")
        hidden = Scaled.apply(hidden, 2.5 if self.planted == "backward" else 2.0)
        return model[1](hidden).square().mean()

    def train(self, out=None, *, plan="bits"):
        torch.manual_seed(0)
        if out is not None:
            early.begin_early(Plan.load(plan))
        try:
            data = self.data()
            scale, loader = self.scale(data), self.loader(data)
            model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9 if self.planted == "horizon" else 6)
            batches = iter(loader)
            watch = None
            if out is not None:
                resume = early.pause_early()
                watch = trueline.watch(model, optimizer, out=out, plan=plan)
                resume()
            for (x,) in batches:
                optimizer.zero_grad()
                self.loss(model, x * scale).backward()
                optimizer.step()
                schedule.step()
            if watch is not None:
                watch.close()
        finally:
            early.end_early()
        return [param.detach().clone() for param in model.parameters()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bits") / "reference"
    Job().train(out)
    return out


def test_two_runs_of_one_job_are_the_same_and_have_fingerprints_alone(reference: Path, tmp_path: Path) -> None:
    Job().train(tmp_path / "again")
    comparison = compare(tmp_path / "again", reference)
    assert comparison.exit_code == 0
    assert {row.note for row in comparison.rows if row.judgement != "equal"} == {UNFILLED}
    run = trueline.open_run(reference)
    table = run.records()
    assert run.manifest.fingerprint == "bits"
    assert set(table["sum"].to_pylist()) == {None}
    measured = [number for number in table["fingerprint"].to_pylist() if number is not None]
    assert len(measured) > 100
    called = {name for name, step in zip(table["name"].to_pylist(), table["step"].to_pylist(), strict=True) if not step}
    assert {"from_numpy", "randperm", "tolist", "std", "item", "full", "stack", "kaiming_uniform_"} <= called


@pytest.mark.parametrize(
    ("planted", "api", "method"),
    [
        ("data", "torch.from_numpy", Job.data),
        ("order", "torch.randperm", Job.train),
        ("gelu", "torch.nn.functional.gelu", Job.loss),
    ],
)
def test_the_first_call_that_makes_something_else_is_named_with_its_line(reference, tmp_path, planted, api, method):
    Job(planted).train(tmp_path / "run")
    leading = compare(tmp_path / "run", reference).findings[0]
    assert leading.severity == "error"
    assert f"{api}, " in leading.claim, leading.claim
    assert HERE in leading.evidence["where"], leading
    assert leading.evidence["where"].endswith(method.__qualname__), leading


def test_the_arguments_of_a_call_of_a_backward_function_are_its_own(reference: Path, tmp_path: Path) -> None:
    Job("backward").train(tmp_path / "run")
    leading = compare(tmp_path / "run", reference).findings[0]
    assert "argument 1 is 2.5 and not 2.0" in leading.claim, leading.claim
    assert leading.evidence["where"].endswith("Scaled.backward"), leading


def test_a_schedule_of_another_length_is_named_with_the_rate(reference: Path, tmp_path: Path) -> None:
    Job("horizon").train(tmp_path / "run")
    leading = compare(tmp_path / "run", reference).findings[0]
    assert (leading.code, leading.step_first) == ("optimizer-differs", 1)
    assert "lr is" in leading.claim


def test_training_is_bitwise_the_same_with_all_calls_recorded_from_the_start(tmp_path: Path) -> None:
    for plain, recorded in zip(Job().train(), Job().train(tmp_path / "run"), strict=True):
        assert torch.equal(plain, recorded)
    assert torch.from_numpy.__module__ != "trueline.capture.record.outside"
    assert not torch.overrides._get_current_function_mode_stack()


def test_what_was_begun_for_no_model_ends(tmp_path: Path) -> None:
    early.begin_early(Plan.load("bits"))
    assert torch.overrides._get_current_function_mode_stack()
    early.end_early()
    assert not torch.overrides._get_current_function_mode_stack()
    early.begin_early(Plan.load("mix"))
    assert not torch.overrides._get_current_function_mode_stack()


def test_bits_are_asked_for_from_the_start_and_alone() -> None:
    with pytest.raises(PlanError, match="takes one fingerprint of every value and nothing else"):
        Plan.load({"preset": "bits", "depth": "tensor"})
    with pytest.raises(PlanError, match="from the start of a job to its end"):
        Plan.load("mix").revised({"preset": "bits"}, "a change")
    with pytest.raises(PlanError, match="from the start of a job to its end"):
        Plan.load("bits").revised({"preset": "mix"}, "a change")


def test_runs_of_other_ranks_cannot_be_told_apart_by_bits() -> None:
    bits, mix = (SimpleNamespace(manifest=SimpleNamespace(fingerprint=kind)) for kind in ("bits", "trueline"))
    merged = [Arrangement(0, None, "", lambda: None)]
    with pytest.raises(CannotTell, match="the same ranks"):
        require_same_layout(bits, mix, merged)
    require_same_layout(mix, mix, merged)
    require_same_layout(bits, bits, [Arrangement(0, 0, "", lambda: None)])


def test_one_flipped_bit_is_another_digest_and_a_view_of_all_is_none() -> None:
    x = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    flipped = x.clone()
    flipped.view(torch.int32)[3, 5] ^= 1
    assert digest_of_memory(x) != digest_of_memory(flipped)
    assert digest_of_memory(x.t()) == digest_of_memory(x.t().contiguous())
    assert digest_of_memory(x.t()) != digest_of_memory(x)
    assert digest_of_memory(torch.view_as_complex(x.view(4, 3, 2)).conj()) != digest_of_memory(x)
    assert digest_of_memory(torch.empty(0)) == 0
