"""masked-rows-decay: rows whose gradient is set to 0 and that are decayed; rows that are trained, or never read."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

VOCAB, WIDTH, STEPS = 24, 6, 12


class Words(nn.Module):
    def __init__(self, *, padding=None, rows=VOCAB):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(rows, WIDTH, padding_idx=padding), nn.Embedding(40, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head((self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))).cumsum(1))


def trained(out, model, *, mask=lambda model: None, decay=0.1, lr=0.01, ids=lambda: torch.randint(0, VOCAB, (8, 10))):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    losses = []
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}) if out else torch.enable_grad():
        for _ in range(STEPS):
            rows = ids()
            loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0)
            loss.backward()
            mask(model)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return [*losses, *(param.detach().clone() for param in model.parameters())]


def said(out):
    findings, missing = asked(out, "masked-rows-decay")
    return [finding.claim for finding in findings], missing


def zeroed(model):
    model.wte.weight.grad[:-1] = 0.0


def hooked():
    model = Words()
    keep = torch.zeros(VOCAB, 1).index_fill_(0, torch.tensor([VOCAB - 1]), 1.0)
    model.wte.weight.register_hook(lambda grad: grad * keep)
    return model


def test_a_gradient_that_is_set_to_zero_is_found(tmp_path):
    trained(tmp_path, Words(), mask=zeroed)
    (claim,), _ = said(tmp_path)
    assert claim == (
        "23 of 24 rows of wte.weight that were read had no gradient at any of 5 steps, and shrank all the same: weight "
        "decay 0.1."
    )


def test_a_hook_that_masks_is_found(tmp_path):
    trained(tmp_path, hooked())
    assert len(said(tmp_path)[0]) == 1


HEALTHY = {
    "all rows": (Words, {}),
    "rows that nobody reads": (lambda: Words(rows=200), {}),
    "padding": (lambda: Words(padding=0), {"ids": lambda: torch.randint(0, 6, (8, 10)) * torch.randint(0, 2, (8, 1))}),
    "small rate": (Words, {"mask": zeroed, "lr": 1e-9}),
    "answers alone": (
        Words,
        {"ids": lambda: torch.cat([torch.randint(1, VOCAB, (8, 6)), torch.zeros(8, 4).long()], 1)},
    ),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("make", "keys"), HEALTHY.values(), ids=HEALTHY)
def test_rows_that_are_trained_or_not_read_are_silent(tmp_path, make, keys):
    trained(tmp_path, make(), **keys)
    assert said(tmp_path) == ([], [])


def test_without_decay_nothing_is_looked_at(tmp_path):
    trained(tmp_path, Words(), mask=zeroed, decay=0.0)
    claims, missing = said(tmp_path)
    assert claims == []
    assert "no embedding was seen" in missing[0]


def test_a_training_is_bitwise_what_it_is_unwatched(tmp_path):
    models = []
    for out in (tmp_path, None):
        torch.manual_seed(0)
        models.append(trained(out, Words(), mask=zeroed))
    assert all(torch.equal(*pair) for pair in zip(*models, strict=True))
