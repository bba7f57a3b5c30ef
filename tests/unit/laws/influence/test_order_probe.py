"""Order of tokens: told where nothing tells equal tokens at two places apart, and training as it was."""

import pytest
import torch
from gallery.laws.influence.w6_lost_order import Ordered
from gallery.problems import CausalLM
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline
from trueline.laws.influence.probe.order import _pairs

LENGTH, VOCABULARY, WIDTH = CausalLM.length, CausalLM.vocab_size, 16


class Plain(nn.Module):
    """Attention without any positions, or with a bias by distance."""

    def __init__(self, *, slope=0.0, causal=True, dropout=0.0, convolved=False, bag=False):
        super().__init__()
        self.slope, self.causal, self.bag = slope, causal, bag
        self.embed, self.qkv = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.drop, self.out, self.head = nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=2) if convolved else None

    def forward(self, ids, position_ids=None):
        x = self.drop(self.embed(ids))
        if self.mix is not None:
            x = self.mix(x.transpose(1, 2))[..., :LENGTH].transpose(1, 2)
        if self.bag:
            return self.head(self.out(x + x.cumsum(1)))
        far = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        bias = torch.where(far >= 0, -self.slope * far, -torch.inf) if self.causal else -self.slope * far.abs()
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(x + self.out((q @ k.mT / WIDTH**0.5 + bias.to(x.dtype)).softmax(-1) @ v))


def test_rows_that_end_in_padding_have_no_pairs():
    """Whose embedding is 0, as that of a ``padding_idx`` is: a query of 0 attends everywhere alike."""
    ids, embedding = torch.tensor([[5, 6, 5, 0], [5, 6, 5, 7]]), nn.Embedding(8, WIDTH, padding_idx=0)
    assert _pairs(ids, embedding(ids)).T.tolist() == [[1, 0, 2]]
    assert _pairs(ids[:1], embedding(ids[:1])) is None


class Recurrent(nn.Module):
    """Reads tokens one after the other."""

    def __init__(self):
        super().__init__()
        self.embed, self.read = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.head(self.read(self.embed(ids))[0])


def trained(out, model, *, distinct=False, dtype=torch.float32, plan=None, **more):
    """The parameters after two steps; watched into ``out`` unless that is None."""
    torch.manual_seed(1)
    model = model.to(dtype)
    updates = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan=plan or {"every": 1, "influence": 1})
    for _ in range(2):
        ids = torch.randint(VOCABULARY // 8, (4, LENGTH))
        ids = torch.stack([torch.randperm(VOCABULARY)[:LENGTH] for _ in range(4)]) if distinct else ids
        logits = model(ids, **more)
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def judged(out):
    findings, why = asked(out, "order-ignored")
    return [(each.severity, each.evidence["kind"]) for each in findings], why


LOST, NONE = [("warning", "positions-lost")], [("info", "no-positions")]


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model", "found"),
    [
        (lambda: Ordered("lost", learned=False), LOST),
        (lambda: Ordered("lost", learned=True), LOST),
        (lambda: Ordered("", learned=False), []),
        (lambda: Ordered("", learned=True), []),
        (lambda: Plain(), NONE),
        (lambda: Plain(causal=False), NONE),
        (lambda: Plain(bag=True), NONE),
        (lambda: Plain(slope=0.5), []),
        (lambda: Plain(slope=0.5, causal=False), []),
        (lambda: Plain(convolved=True), []),
        (lambda: Recurrent(), []),
    ],
)
def test_order_that_is_lost_and_order_that_is_not(tmp_path, dtype, model, found):
    torch.manual_seed(0)
    trained(tmp_path / "run", model(), dtype=dtype)
    assert judged(tmp_path / "run") == (found, [])


def test_a_model_that_is_given_positions_is_to_use_them(tmp_path):
    trained(tmp_path / "run", Plain(), position_ids=torch.arange(LENGTH)[None])
    assert judged(tmp_path / "run") == (LOST, [])


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        (lambda: Plain(dropout=0.5), {}, "dropout"),
        (lambda: Plain(), {"distinct": True}, "no token stands twice"),
        (
            lambda: nn.Sequential(nn.Embedding(VOCABULARY, VOCABULARY), nn.Linear(VOCABULARY, VOCABULARY)),
            {},
            "no layer",
        ),
        (lambda: Plain(), {"plan": {"every": 1}}, "names no step"),
    ],
)
def test_where_it_cannot_be_told_there_is_a_reason(tmp_path, model, more, reason):
    trained(tmp_path / "run", model(), **more)
    found, (why,) = judged(tmp_path / "run")
    assert found == []
    assert reason in why


def test_training_is_the_same_to_the_bit(tmp_path):
    torch.manual_seed(3)
    models = [Ordered("", learned=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    alone, watched = trained(None, models[0]), trained(tmp_path / "run", models[1])
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
