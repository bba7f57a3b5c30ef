"""Operations called again where they are: which differ, which are left out, and that nothing else changes."""

import json

import pytest
import torch
from torch import nn

from trueline.capture.trial.repeated_calls import Pool, RepeatedCalls
from trueline.tensor.sketch import SignBank

CALLS = []


@torch.library.custom_op("trueline_tests::counts", mutates_args=("out",))
def counts(x: torch.Tensor, out: torch.Tensor) -> None:
    CALLS.append(1)
    out.copy_(x + (len(CALLS) if x.shape[0] == 3 else 0))


def repeated(tmp_path, work, times=3):
    mode = RepeatedCalls(times=times, folder=str(tmp_path))
    mode._begin(nn.Identity())
    try:
        work()
    finally:
        mode.end()
    (path,) = tmp_path.glob("repeated-*.json")
    return {(pool["op"], *pool["form"]): pool for pool in json.loads(path.read_text())}


def test_what_an_operation_writes_into_its_arguments_counts_and_the_job_keeps_the_last(tmp_path):
    x, y, out = torch.ones(3), torch.ones(4), torch.zeros(3)

    def work():
        counts(x, out)
        counts(y, torch.zeros(4))

    CALLS.clear()
    pools = repeated(tmp_path, work)
    bad, good = (pools["trueline_tests.counts.default", *[f"float32[{n}]"] * 2] for n in (3, 4))
    assert (bad["calls"], bad["differ"], good["calls"], good["differ"]) == (1, 1, 1, 0)
    assert bad["rel"] == pytest.approx(1.0)  # 1 + 1 at first, 1 + 3 at last
    assert out.tolist() == [4.0] * 3
    assert len(CALLS) == 6


def test_random_numbers_unwritten_memory_and_views_are_no_difference(tmp_path):
    torch.manual_seed(0)
    expected = [nn.functional.dropout(torch.ones(64)), torch.rand(4), torch.randn(4)]
    torch.manual_seed(0)
    found = []

    def work():
        found.append(nn.functional.dropout(torch.ones(64)))
        found.extend([torch.rand(4), torch.randn(4)])
        torch.empty_like(torch.ones(1000)).view(10, 100).t()
        torch.ones(8).bernoulli_(0.5)

    pools = repeated(tmp_path, work)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(pool["differ"] for pool in pools.values()), pools
    assert not any("empty" in op or "view" in op or ".t." in op for op, *_ in pools)
    assert any(op.startswith("aten.bernoulli_") for op, *_ in pools)


def test_the_backward_pass_is_seen_and_gradients_are_the_same(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(5, 4)
    model(x).square().sum().backward()
    expected = [param.grad.clone() for param in model.parameters()]
    model.zero_grad()
    pools = repeated(tmp_path, lambda: model(x).square().sum().backward())
    assert all(torch.equal(param.grad, grad) for param, grad in zip(model.parameters(), expected, strict=True))
    assert any(op.startswith("aten.gelu_backward") for op, *_ in pools)
    assert not any(pool["differ"] for pool in pools.values())


def test_nan_is_nan_and_minus_zero_is_not_zero(tmp_path):
    pools = repeated(tmp_path, lambda: torch.tensor([float("nan"), -0.0]).mul(1))
    assert not any(pool["differ"] for pool in pools.values())
    assert RepeatedCalls._compare(Pool("op", [], 0.0), [torch.tensor([0.0])], [torch.tensor([-0.0])])


def test_what_trueline_computes_is_not_the_jobs(tmp_path):
    pools = repeated(tmp_path, lambda: (SignBank(capacity=64, device="cpu").signs("a", 8), torch.ones(2).mul(3)))
    assert [op for op, *_ in pools] == ["aten.mul.Tensor"]
