"""On a GPU: recording synchronises in no hook, changes no bit, and measures what a host would. Skipped without CUDA."""

from __future__ import annotations

import pytest
import torch
from tests.unit.recording import Recording, site
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STEPS = 4


def train(plan, device="cuda", *, strict=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 100)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recording = Recording(model, plan, optimizer) if plan else None
    batches = [torch.randint(0, 100, (4, 16)).to(device) for _ in range(STEPS)]
    for step, tokens in enumerate(batches):
        if strict and step == 2:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        if recording is not None:
            recording.session.open_step(step)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")
    if recording is not None:
        recording.session.drain(wait=True)
    return [param.detach().cpu() for param in model.parameters()], recording


@pytest.mark.parametrize("preset", ["modules", "ops", "mix"])
@pytest.mark.parametrize("depth", ["stats", "fingerprint"])
def test_no_hook_synchronises_and_no_bit_changes(preset, depth):
    bare, _ = train(None)
    params, recording = train({"preset": preset, "depth": depth}, strict=True)
    assert all(torch.equal(a, b) for a, b in zip(bare, params, strict=True))
    assert len(recording.steps) == STEPS


def test_parameters_have_the_statistics_and_fingerprints_of_the_host():
    _, on_device = train({"preset": "modules", "depth": "fingerprint", "phases": ["param"], "steps": [0, 1]})
    _, on_host = train({"preset": "modules", "depth": "fingerprint", "phases": ["param"], "steps": [0, 1]}, "cpu")
    for a, b in zip(on_device.steps[0], on_host.steps[0], strict=True):
        assert site(a) == site(b)
        assert (a["min"], a["max"], a["zero"], a["fingerprint"]) == (b["min"], b["max"], b["zero"], b["fingerprint"])


def test_values_of_several_streams_arrive():
    torch.manual_seed(0)
    model, aside, made = nn.Linear(64, 64).cuda(), torch.cuda.Stream(), []
    x = torch.randn(4096, 64, device="cuda")

    def run():
        model(x)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            made.append((x @ x.T)[:, :64].contiguous())
            model(made[0])
        torch.cuda.current_stream().wait_stream(aside)

    rows = Recording(model, {"preset": "modules"}).step(0, run)
    found = [row["max"] for row in rows if (row["phase"], row["slot"]) == ("fwd", "in0")]
    assert found == [x.double().max().item(), made[0].double().max().item()]
