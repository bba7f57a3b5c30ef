"""The first call that made other bits of the same tensors in two Runs of one job, and when none is named."""

import pytest
import torch
from torch import nn

import trueline


def trained(out, *, spoils="", depth="fingerprint", flags=False):
    """A Run of two recorded steps; in one, a call may differ in its last bit, or what comes from between calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 4))
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 8)
    patched = nn.functional.linear

    def linear(x, weight, bias):
        y = patched(x, weight, bias)
        if spoils == "call" and weight.shape[0] == 4:
            y.data.view(torch.int32)[0, 0] ^= 1
        return y

    before, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, not flags
    nn.functional.linear = linear
    try:
        with trueline.watch(model, optimizer, out=out, plan={"preset": "modules", "steps": [0, 2], "depth": depth}):
            for step in range(2):
                batch = data * 2 if spoils == "between" and step else data
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        nn.functional.linear, torch.backends.mkldnn.enabled = patched, before
    return out


def found(run, ref):
    return [each for each in trueline.compare(run, ref).findings if each.code == "nondeterministic-op"]


def test_a_call_whose_last_bit_differs_is_named_as_information(tmp_path):
    (finding,) = found(trained(tmp_path / "run", spoils="call"), trained(tmp_path / "ref"))
    assert (finding.severity, finding.sites, finding.step_first) == ("info", ("0.0/r0/fwd/2#0:out0",), 0)
    assert "of the same tensors in two runs of one job, as much as another order" in finding.claim


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "changed", [{}, {"spoils": "between"}, {"spoils": "call", "depth": "stats"}, {"spoils": "call", "flags": True}]
)
def test_nothing_is_named_of_equal_runs_other_data_statistics_or_another_environment(tmp_path, changed):
    """Dropout is the same with the same seed."""
    assert not found(trained(tmp_path / "run", **changed), trained(tmp_path / "ref"))
