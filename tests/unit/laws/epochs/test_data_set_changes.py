"""data-set-changes: what is stored is divided again in each epoch, or grows; what is read unchanged, or replaced."""

import numpy as np
import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import trueline

N, WIDTH = 48, 12


class Held(Dataset):
    """Reads by ``read(self, index)``, which returns a tensor [WIDTH]."""

    def __init__(self, read, rows):
        self.rows, self.read, self.label = rows, read, torch.arange(N)

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.read(self.rows, index)


def tensor():
    return torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(1)) * 255


def trained(out, data, *, epochs=4, at_epoch=lambda epoch: None, **keys):
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    loader = DataLoader(data, batch_size=16, shuffle=True, **keys)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for epoch in range(epochs):
            at_epoch(epoch)
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x.float()).mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def said(out):
    findings, missing = asked(out, "data-set-changes")
    return [finding.claim for finding in findings], missing


def divided(rows, index):
    x = rows[index]
    x /= 255
    return x


def standardised(rows, index):
    rows[index] = (rows[index] - 3.0) / 2.0
    return torch.as_tensor(rows[index])


def by_feature(rows, index):
    rows[index].sub_(torch.arange(WIDTH)).div_(1 + torch.arange(WIDTH))
    return rows[index]


def in_a_dict(rows, index):
    rows[index]["x"] *= 0.5
    return rows[index]["x"]


def prompted(rows, index):
    rows[index]["text"] = "Question: " + rows[index]["text"]
    return torch.full((WIDTH,), float(len(rows[index]["text"])))


def ended(rows, index):
    rows[index].append(2)
    return torch.full((WIDTH,), float(len(rows[index])))


FAULTS = {
    "divided": (divided, tensor, "16 of 16 rows of `rows` that were looked at are 0.00392 times what they were, in"),
    "standardised": (standardised, lambda: tensor().numpy(), "0.5 times what they were, -1.5, in each of 3 epochs"),
    "by feature": (by_feature, tensor, "16 of 16 rows of `rows`"),
    "in a dict": (in_a_dict, lambda: [{"x": x, "y": 1} for x in tensor()], "rows of `rows['x']`"),
    "prompted": (prompted, lambda: [{"text": f"text {n}"} for n in range(N)], "10 elements longer than before"),
    "ended": (ended, lambda: [[n, n + 1] for n in range(N)], "1 element longer than before, in each of 3 epochs"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("read", "rows", "words"), FAULTS.values(), ids=FAULTS)
def test_what_changes_again_in_each_epoch_is_found(tmp_path, read, rows, words):
    trained(tmp_path, Held(read, rows()))
    (claim,), _ = said(tmp_path)
    assert claim.startswith("Reading changes the data set: ")
    assert words in claim


def test_a_part_of_a_data_set_is_looked_into(tmp_path):
    trained(tmp_path, Subset(Held(divided, tensor()), range(N)))
    assert len(said(tmp_path)[0]) == 1


def copied(rows, index):
    return rows[index] / 255


def of_unit_length(rows, index):
    rows[index] /= rows[index].norm()
    return rows[index]


def noisy(rows, index):
    rows[index] += torch.randn(WIDTH)
    return rows[index]


def cached(rows, index):
    if rows[index] is None:
        rows[index] = torch.rand(WIDTH)
    return rows[index]


def shuffled(rows, index):
    np.random.default_rng().shuffle(rows[index])
    return torch.as_tensor(rows[index])


HEALTHY = {
    "copied": (copied, tensor),
    "once": (of_unit_length, tensor),
    "noise in place": (noisy, tensor),
    "cached": (cached, lambda: [None] * N),
    "words in another order": (shuffled, lambda: tensor().numpy()),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("read", "rows"), HEALTHY.values(), ids=HEALTHY)
def test_what_stays_or_changes_otherwise_is_silent(tmp_path, read, rows):
    trained(tmp_path, Held(read, rows()))
    assert said(tmp_path) == ([], [])


def test_rollouts_and_weights_that_are_replaced_are_silent(tmp_path):
    x, weight = tensor(), torch.ones(N)

    def replaced(epoch):
        x.copy_(torch.rand(N, WIDTH) * epoch)
        weight.mul_(0.5)

    trained(tmp_path, TensorDataset(x, weight), at_epoch=replaced)
    assert said(tmp_path) == ([], [])


def test_two_epochs_tell_nothing(tmp_path):
    trained(tmp_path, Held(divided, tensor()), epochs=2)
    claims, missing = said(tmp_path)
    assert claims == []
    assert "three times" in missing[0]
