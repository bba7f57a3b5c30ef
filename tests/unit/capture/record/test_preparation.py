"""What a script computes between the batch and the model is recorded, and what else it computes there is not."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading

import pytest
import torch
from tests.unit.recording import Recording, site
from torch import nn
from torch.utils.data import DataLoader

from trueline.capture.record import preparation


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)


def outside(rows):
    """The calls of the forward phase that no module made, in their order, and their sites."""
    found = [row for row in rows if row["phase"] == "fwd" and row["kind"] == "op" and not row["module"]]
    return list(dict.fromkeys(site(row).rpartition(":")[0] for row in found))


class Script:
    """A training loop as people write it, of ``num_micro`` micro-batches a step."""

    def __init__(self, num_micro=1):
        self.model, self.optimizer = made()
        self.average = copy.deepcopy(self.model)
        self.data, self.schedule, self.metric = torch.randn(16, 4), torch.linspace(0, 1, 10), torch.zeros(())
        self.num_micro = num_micro
        self.losses = []

    def between_steps(self):
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        self.model.eval()
        with torch.no_grad():
            self.losses.append((self.model(self.data) - 1).square().mean().item())
        self.model.train()
        self.optimizer.zero_grad()

    def step(self):
        self.between_steps()
        for _ in range(self.num_micro):
            x = self.data[torch.randperm(16)[:8]]
            noise = torch.randn_like(x)
            noisy = x + self.schedule[torch.randint(0, 10, (8,))][:, None] * noise
            (self.model(noisy) - noise).abs().sum().backward()
            self.metric += noisy.detach().max()
        self.optimizer.step()


PREPARES = [
    *("randperm#0", "getitem#0", "getitem#1", "randn_like#0", "randint#0", "getitem#2", "getitem#3", "mul#0", "add#0"),
    *("sub#0", "abs#0", "sum#0"),
]


@pytest.mark.parametrize("num_micro", [1, 2])
def test_the_calls_that_reach_the_model_or_the_loss_are_recorded_and_no_others(num_micro):
    script = Script(num_micro)
    recording = Recording(script.model, {"preset": "mix"}, script.optimizer)
    for step in range(3):
        recording.session.open_step(step)
        script.step()
    recording.session.drain(wait=True)
    for rows in recording.steps:
        assert outside(rows) == [f"{micro}/fwd/{name}" for micro in range(num_micro) for name in PREPARES]
        assert {row["micro"] for row in rows if row["phase"] == "fwd"} == set(range(num_micro))
        noise = next(row for row in rows if site(row) == "0/fwd/randn_like#0:out0")
        assert "test_preparation.py" in recording.stacks[noise["stack"]][0]
        assert recording.stacks[noise["stack"]][0].endswith("Script.step")


def test_what_is_dropped_leaves_its_numbers_to_the_rows_that_share_them():
    script = Script()
    recording = Recording(script.model, {"preset": "mix", "depth": "tensor"}, script.optimizer)
    recording.session.open_step(0)
    x = script.data[:8]
    x.double()  # goes nowhere, and measures x first
    with torch.no_grad():
        script.model(x)
    (script.model(x) * 2).sum().backward()
    script.optimizer.step()
    recording.session.drain(wait=True)
    rows = {site(row): row for row in recording.steps[0]}
    assert outside(recording.steps[0]) == ["0/fwd/getitem#0", "0/fwd/mul#0", "0/fwd/sum#0"]
    weight = rows["0/fwd/0.linear#1:in1"]
    assert weight["measured"]
    assert all(row["measured"] or row["same_as"] is not None for row in rows.values())
    assert all(row["tensor"] for row in rows.values() if row["measured"])


def test_training_is_bitwise_the_same_whatever_is_recorded_before_the_model():
    bare, recorded = Script(2), Script(2)
    for step in range(2):
        torch.manual_seed(step)
        bare.step()
    recording = Recording(recorded.model, {"preset": "mix", "depth": "fingerprint"}, recorded.optimizer)
    for step in range(2):
        recording.session.open_step(step)
        torch.manual_seed(step)
        recorded.step()
    assert recorded.losses == bare.losses
    for a, b in zip(bare.model.parameters(), recorded.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_nothing_is_on_before_a_step_that_is_not_asked_for():
    script = Script()
    recording = Recording(script.model, {"preset": "mix", "steps": [0, 1]}, script.optimizer)
    recording.session.open_step(0)
    script.step()
    recording.session.open_step(1)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_what_a_loader_does_to_make_a_batch_is_not_recorded_and_what_follows_is():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(4) * index

    def collate(rows):
        return torch.stack(rows) / 8

    model, optimizer = made()
    recording = Recording(model, {"preset": "ops"}, optimizer)
    recording.session.open_step(0)
    for batch in DataLoader(Rows(), batch_size=8, collate_fn=collate):
        model(batch.flip(1)).sum().backward()
    optimizer.step()
    recording.session.drain(wait=True)
    assert outside(recording.steps[0]) == ["0/fwd/flip#0", "0/fwd/sum#0"]


def test_what_another_thread_computes_before_the_model_is_not_recorded():
    model, optimizer = made()
    x = torch.ones(8, 4)
    recording = Recording(model, {"preset": "ops"}, optimizer)
    recording.session.open_step(0)
    thread = threading.Thread(target=lambda: x.mul_(2))
    thread.start()
    thread.join()
    model(x).sum().backward()
    optimizer.step()
    recording.session.drain(wait=True)
    assert outside(recording.steps[0]) == ["0/fwd/sum#0"]


def test_the_update_of_another_model_prepares_nothing_but_a_closure_may():
    (model, optimizer), (other, its_optimizer) = made(), made()
    x = torch.ones(8, 4)
    recording = Recording(model, {"preset": "ops"}, None)
    recording.session.open_step(0)
    other(x).sum().backward()
    its_optimizer.step()

    def closure():
        loss = (other(model(x.neg())) * 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    recording.session.close_step()
    recording.session.drain(wait=True)
    assert outside(recording.steps[0])[0] == "0/fwd/neg#0"
    assert not [name for name in outside(recording.steps[0]) if "addcdiv" in name or "lerp" in name]


def test_more_calls_before_the_model_than_are_kept_leave_the_last_ones(monkeypatch):
    monkeypatch.setattr(preparation, "MAX_AHEAD", 10)
    model, optimizer = made()
    recording = Recording(model, {"preset": "ops"}, optimizer)
    recording.session.open_step(0)
    rows = [torch.ones(4) for _ in range(15)]
    model(torch.stack(rows)).sum().backward()
    optimizer.step()
    recording.session.drain(wait=True)
    assert outside(recording.steps[0]) == [
        *(f"0/fwd/ones#{index}" for index in range(5)),
        "0/fwd/stack#0",
        "0/fwd/sum#0",
    ]
    shares = [row for row in recording.steps[0] if site(row).startswith("0/fwd/stack#0:in0")]
    assert len(shares) == 15
    assert all(row["sum"] == 4.0 for row in shares)


def test_after_far_too_many_calls_before_the_model_nothing_before_it_is_recorded(monkeypatch):
    monkeypatch.setattr(preparation, "MAX_AHEAD", 10)
    monkeypatch.setattr(preparation, "MAX_DROPS", 3)
    model, optimizer = made()
    recording = Recording(model, {"preset": "ops"}, optimizer)
    recording.session.open_step(0)
    rows = [torch.ones(4) for _ in range(40)]
    model(torch.stack(rows)).sum().backward()
    optimizer.step()
    recording.session.drain(wait=True)
    assert outside(recording.steps[0]) == ["0/fwd/sum#0"]
    assert any("before the forward pass" in note for note in recording.notes)


def test_a_change_through_data_is_seen_and_leads_to_what_reads_it():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = x * 1
            y.data.mul_(2)
            y.data[0] = 3
            return self.inner(y)

    model = Changing()
    rows = Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.ones(2, 4)))
    seen = {site(row): index for index, row in enumerate(rows)}
    assert rows[seen["0/fwd/Changing.mul_#0:out0"]]["sum"] == 16
    written, read = rows[seen["0/fwd/Changing.setitem#0:out0"]], rows[seen["0/fwd/inner.linear#0:in0"]]
    assert (written["sum"], read["sum"]) == (20, 20)
    assert read["same_as"] == seen["0/fwd/Changing.setitem#0:out0"]


COMPILING = """
import sys, torch
from tests.unit.recording import Recording
sizes = []
def backend(graph, inputs):
    sizes.append(len([node for node in graph.graph.nodes if node.op.startswith("call")]))
    return graph
def bent(x):
    return (x * 2).sin() + 1
model = torch.nn.Linear(3, 3)
recording = Recording(model, {"preset": "mix"})
recording.session.open_step(0)
assert "torch._dynamo.eval_frame" not in sys.modules
model(torch.compile(bent, backend=backend)(torch.ones(2, 3))).sum().backward()
recording.session.close_step()
recording.session.drain(wait=True)
print(sizes, [row["name"] for row in recording.steps[0] if row["flags"] == "compiled"])
"""


@pytest.mark.in_turn
def test_what_is_compiled_before_the_first_pass_is_compiled_as_it_is_unrecorded():
    """In a process of its own, which has compiled nothing before the step is opened."""
    run = subprocess.run([sys.executable, "-c", COMPILING], capture_output=True, text=True, check=False)
    assert run.stdout.split("\n")[0] == "[3] ['bent', 'bent']", run.stderr
