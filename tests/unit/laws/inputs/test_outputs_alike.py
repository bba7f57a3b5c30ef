"""outputs-alike: models that have collapsed to a constant; heads that begin at 0, dropout and inputs that are alike."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

WIDTH, BATCH, STEPS = 8, 16, 20


class Model(nn.Module):
    def __init__(self, *, dead=False, saturated=False, zero_head=False, dropout=0.0, masked=False, mapped=False):
        super().__init__()
        self.first, self.head, self.drop = nn.Linear(WIDTH, 16), nn.Linear(16, 3), nn.Dropout(dropout)
        self.masked, self.mapped, self.act = masked, mapped, torch.tanh if saturated else torch.relu
        with torch.no_grad():
            if dead or saturated:
                self.first.bias.fill_(-1e3)
            if zero_head:
                self.head.weight.zero_()

    def forward(self, x, labels=None):
        y = self.head(self.drop(self.act(self.first(x))))
        y = torch.cat([y, torch.full_like(y[:, :1], -1e9)], 1) if self.masked else y
        return {"bound": y[:1].sum(), "logits": y} if self.mapped else y


def said_of(path, *, alike=False, collapses=None, **kinds):
    torch.manual_seed(0)
    model, draw = Model(**kinds), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, optimizer, out=path, plan={"every": 1})
    for step in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=draw)
        x = x[:1].expand_as(x) if alike else x
        if step == collapses:
            with torch.no_grad():
                model.first.bias.fill_(-1e3)
        y = model(x)
        y = y["logits"] if kinds.get("mapped") else y
        optimizer.zero_grad()
        functional.cross_entropy(y, torch.randint(0, 3, (BATCH,), generator=draw)).backward()
        optimizer.step()
    watch.close()
    return asked(path, "outputs-alike")[0]


@pytest.mark.parametrize("kinds", [{"dead": True}, {"saturated": True}, {"dead": True, "mapped": True}])
def test_units_that_are_dead_or_saturated_leave_the_last_bias(tmp_path, kinds):
    (finding,) = said_of(tmp_path / "run", **kinds)
    assert (finding.severity, finding.step_first) == ("confirm", 0)
    assert finding.claim == (
        "The model returns the same for all samples of a batch since step 0, at each of 16 steps that were looked at, "
        "though its inputs differ."
    )


def test_since_when(tmp_path):
    (finding,) = said_of(tmp_path / "run", collapses=6)
    assert finding.step_first == 6
    assert said_of(tmp_path / "late", collapses=12) == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "kinds",
    [{}, {"zero_head": True}, {"dropout": 0.5}, {"alike": True, "dead": True}, {"masked": True}, {"mapped": True}],
    ids=["healthy", "a head of 0", "dropout", "samples that are alike", "a logit that is masked", "several outputs"],
)
def test_what_differs_or_need_not(tmp_path, kinds):
    assert said_of(tmp_path / "run", **kinds) == []
