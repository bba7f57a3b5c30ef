"""A call of several results of which one gets no gradient does not end the recording."""

import torch
from torch import nn

import trueline
from trueline.store.reader import Run


class Halves(nn.Module):
    """Uses the first of two chunks only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, x):
        used, _ = self.linear(x).chunk(2, dim=-1)
        unused = self.linear(x).chunk(2, dim=-1)
        return (used + unused[1]).square().sum()


def test_a_result_without_a_gradient_does_not_end_the_recording(tmp_path):
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run", plan={"preset": "mix", "depth": "stats"})
    for _ in range(2):
        with watch.step():
            model(torch.ones(3, 6)).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    run = Run(tmp_path / "run")
    assert run.record_steps.tolist() == [0, 1]
    assert not run.problems
    assert "bwd" in run.records(columns=["phase"])["phase"].to_pylist()
