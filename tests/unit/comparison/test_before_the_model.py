"""A difference in what the script computes between the batch and the model is found there, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueline
from trueline.comparison.compare import compare


def noisy(x: Tensor, noise: Tensor) -> Tensor:
    return x.mul(0.9).add(noise.mul(0.1))


def noisier(x: Tensor, noise: Tensor) -> Tensor:
    return x.mul(0.9).add(noise.mul(0.101))


def unnoised(x: Tensor, noise: Tensor) -> Tensor:
    return x.mul(0.9)


def written(x: Tensor, noise: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:] = x * 0.9
    out += noise * 0.1
    return out


def trained(out: Path, prepare, *, evaluates: bool = False) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix"})
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        if evaluates:
            model.eval()
            with torch.no_grad():
                F.mse_loss(model(torch.ones(4, 6)), torch.zeros(4, 6))
            model.train()
        for _ in range(2):
            x, noise = torch.randn(8, 6, generator=draw), torch.randn(8, 6, generator=draw)
            F.mse_loss(model(prepare(x, noise)), noise).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    return out


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("between") / "reference", noisy)


def test_another_number_is_found_at_its_line(reference: Path, tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", noisier), reference)
    leading = comparison.findings[0]
    assert leading.code == "first-divergence"
    assert leading.sites == ("0.0/r0/fwd/mul#1:out0",)
    assert "argument 1 is 0.101 and not 0.1" in leading.claim
    assert leading.evidence["where"].endswith(f"test_before_the_model.py:{noisier.__code__.co_firstlineno + 1} noisier")


def test_a_call_that_is_missing_is_named_with_its_line(reference: Path, tmp_path: Path) -> None:
    leading = compare(trained(tmp_path / "run", unnoised), reference).findings[0]
    assert leading.code == "structure-differs"
    line = f"test_before_the_model.py:{noisy.__code__.co_firstlineno + 1} noisy"
    assert f"only in REF: `mul` and `add` ({line})" in leading.claim
    assert leading.sites[0].startswith("0.0/")


def test_the_same_values_computed_otherwise_and_an_evaluation_are_no_difference(
    reference: Path, tmp_path: Path
) -> None:
    comparison = compare(trained(tmp_path / "run", written, evaluates=True), reference)
    assert not [finding for finding in comparison.findings if finding.is_grave]
    assert comparison.exit_code == 0


def test_of_several_calls_the_one_that_takes_the_batch_is_named(tmp_path: Path) -> None:
    def normalised(x: Tensor, noise: Tensor) -> Tensor:
        return x.sub(torch.tensor(0.3)).div(torch.tensor(2.0))

    plain = trained(tmp_path / "run", lambda x, noise: x)
    leading = compare(plain, trained(tmp_path / "reference", normalised)).findings[0]
    assert leading.code == "structure-differs"
    assert leading.sites[0].startswith("0.0/r0/fwd/sub#0")
