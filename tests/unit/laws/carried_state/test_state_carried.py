"""Hidden states that go from batch to batch, in an attribute or as an argument, with samples in any order."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.laws.carried_state.state_carried import check
from trueline.schema.errors import CannotTell


class Reader(nn.Module):
    """A recurrent model, [8, 6, 5] to [8, 2]; it keeps what ``keep`` makes of its states."""

    def __init__(self, cell=nn.GRU, keep=None):
        super().__init__()
        self.read, self.head, self.keep, self.state = cell(5, 7, batch_first=True), nn.Linear(7, 2), keep, None
        self.mask = torch.ones(8, 7)
        self.queue = torch.zeros(64, 7)

    def forward(self, x, state=None):
        out, after = self.read(x, self.state if state is None else state)
        if self.keep is not None:
            self.state = self.keep(after)
        last = out[:, -1] * self.mask
        self.last = last.detach()
        scores = last @ self.queue.t()
        self.queue = torch.cat([last.detach(), self.queue[:-8]])
        return self.head(last) + scores.mean(1, keepdim=True), after


def detached(state):
    return tuple(x.detach() for x in state) if isinstance(state, tuple) else state.detach()


def trained(out, model, shuffle=True, as_argument=False, loader=True):
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(80, 6, 5, generator=draw), torch.randint(2, (80,), generator=draw))
    updates, state = torch.optim.SGD(model.parameters(), lr=0.1), None
    watch = trueline.watch(model, updates, out=out, plan={"every": 1})
    batches = DataLoader(data, 8, shuffle=shuffle) if loader else [data[8 * at : 8 * at + 8] for at in range(10)]
    for x, y in batches:
        logits, after = model(x, state) if as_argument and state is not None else model(x)
        functional.cross_entropy(logits, y).backward()
        updates.step()
        updates.zero_grad()
        state = detached(after) if as_argument else None
    watch.close()
    return trueline.open_run(out)


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_state_in_an_attribute_is_told_where_samples_are_shuffled(tmp_path, cell):
    (finding,) = check(trained(tmp_path / "run", Reader(cell, detached)))
    assert finding.severity == "confirm"
    assert set(finding.evidence["names"]) == {"state"}
    assert "hidden state" in finding.claim


def test_a_state_that_is_given_back_as_an_argument_is_told(tmp_path):
    (finding,) = check(trained(tmp_path / "run", Reader(nn.LSTM), as_argument=True))
    assert all(name.startswith("state") for name in finding.evidence["names"])


@pytest.mark.parametrize("as_argument", [False, True])
def test_samples_in_order_may_go_on_where_the_batch_before_ended(tmp_path, as_argument):
    model = Reader(nn.GRU, None if as_argument else detached)
    assert check(trained(tmp_path / "run", model, shuffle=False, as_argument=as_argument)) == []


def test_states_that_begin_anew_masks_queues_and_what_is_only_kept_are_left_alone(tmp_path):
    assert check(trained(tmp_path / "run", Reader())) == []


def test_a_state_that_is_only_kept_to_be_shown_is_left_alone(tmp_path):
    class Shown(Reader):
        def forward(self, x, state=None):
            self.shown = self.read(x)[1].detach()
            return super().forward(x, state)

    assert check(trained(tmp_path / "run", Shown())) == []


def test_without_a_sampler_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="sampler"):
        check(trained(tmp_path / "run", Reader(nn.GRU, detached), loader=False))


def test_losses_are_bitwise_equal_with_watching_on_and_off(tmp_path):
    def weights(watched):
        torch.manual_seed(0)
        model = Reader(nn.GRU, detached)
        torch.manual_seed(1)
        if watched:
            trained(tmp_path / "run", model)
        else:
            draw = torch.Generator().manual_seed(1)
            data = TensorDataset(torch.randn(80, 6, 5, generator=draw), torch.randint(2, (80,), generator=draw))
            updates = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(data, 8, shuffle=True):
                functional.cross_entropy(model(x)[0], y).backward()
                updates.step()
                updates.zero_grad()
        return [param.detach().clone() for param in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))
