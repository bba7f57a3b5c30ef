"""A decision that rounding turns for one number sends its gradient elsewhere, which is no fault of any call."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import trueline

ABOVE = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
DECISIONS = {
    "relu": lambda y: torch.relu(y - 1),
    "clamp": lambda y: y.clamp(min=1.0),
    "abs": lambda y: (y - 1).abs(),
    "amax": lambda y: y.amax(-1),
    "max": lambda y: y.max(-1).values,
    "topk": lambda y: y.topk(1).values,
    "sort": lambda y: y.sort(dim=-1).values[:, -2:],
    "median": lambda y: y.median(-1).values,
    "max_pool1d": lambda y: nn.functional.max_pool1d(y, y.shape[-1]),
}


class Rounds(TorchDispatchMode):
    """The kernel of a linear layer rounds two equal numbers of row 0 apart, and the greater one is the ``greater``."""

    def __init__(self, greater):
        super().__init__()
        self._greater = greater

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.addmm.default:
            result[0].clamp_(max=0.9)
            result[0, 2] = result[0, 5] = 1.0
            result[0, self._greater] = ABOVE
        return result


class Decides(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.body, self._decide = nn.Linear(8, 16), decide

    def forward(self, x):
        return self._decide(self.body(x)).square().sum()


def recorded(out, decide, greater):
    """A Run of one step."""
    torch.manual_seed(0)
    model, data = Decides(decide), torch.randn(32, 8) * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = {"preset": "mix", "steps": [0, 1]}
    with trueline.watch(model, optimizer, out=out, plan=plan), Rounds(greater):
        model(data).backward()
        optimizer.step()
    return out


@pytest.mark.in_turn
@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_that_rounding_turns_is_no_difference(tmp_path, decision):
    runs = [recorded(tmp_path / str(greater), DECISIONS[decision], greater) for greater in (2, 5)]
    comparison = trueline.compare(*runs)
    assert comparison.counts["within"] > 0
    assert (comparison.exit_code, [each.claim for each in comparison.findings if each.is_grave]) == (0, [])
