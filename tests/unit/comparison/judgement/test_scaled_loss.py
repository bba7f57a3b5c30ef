"""A loss that is scaled for the backward pass is no fault where its gradients are unscaled before the update."""

from pathlib import Path

import pytest
import torch
from torch import nn

import trueline


def record(
    out: Path, *, scale: float = 1.0, unscaled: bool = True, depth: str = "stats", off: float | None = None
) -> Path:
    """``off`` is what the gradient of the hidden layer is multiplied by."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})
    if off is not None:
        model[1].register_full_backward_hook(lambda _, given, got: (given[0] * off,))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    for _ in range(2):
        with watch.step():
            loss = nn.functional.cross_entropy(model(x), y)
            (loss if scale == 1.0 else loss * scale).backward()
            for parameter in model.parameters() if unscaled and scale != 1.0 else ():
                parameter.grad.mul_(1 / scale)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return out


@pytest.mark.parametrize("unscaled", [True, False])
def test_a_scaled_loss_is_a_finding_only_where_nothing_undoes_it(tmp_path: Path, unscaled: bool) -> None:
    ref = record(tmp_path / "ref")
    comparison = trueline.compare(record(tmp_path / "run", scale=1024.0, unscaled=unscaled), ref)
    errors = [finding for finding in comparison.findings if finding.severity == "error"]
    assert [finding.code for finding in errors] == ([] if unscaled else ["structure-differs"])
    assert unscaled or "only in RUN: `mul`" in errors[0].claim
    assert (comparison.exit_code == 1) is not unscaled


@pytest.mark.in_turn
@pytest.mark.parametrize("depth", ["stats", "tensor"])
@pytest.mark.parametrize("scale", [1024.0, 3.0])
def test_gradients_of_a_scaled_loss_are_judged(tmp_path: Path, scale: float, depth: str) -> None:
    ref = record(tmp_path / "ref", depth=depth)
    comparison = trueline.compare(record(tmp_path / "run", scale=scale, depth=depth), ref)
    assert comparison.exit_code == 0
    backward = next(each for each in comparison.judged.at_first_step if each.name == "backward")
    assert backward.judged == backward.values_of_ref
    assert any(f"{scale:g} times" in note for note in comparison.notes)


def test_a_wrong_gradient_below_a_scaled_loss_is_found(tmp_path: Path) -> None:
    ref = record(tmp_path / "ref")
    comparison = trueline.compare(record(tmp_path / "run", scale=1024.0, off=1.01), ref)
    assert comparison.exit_code == 1
    assert comparison.first is not None
    assert "bwd/" in str(comparison.first.site)
