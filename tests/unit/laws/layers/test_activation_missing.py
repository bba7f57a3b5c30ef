"""Linear layers in a row are told where one layer could do what both do, and what has reason to be there is left alone.

Inputs are [8, 12], [8, 4, 12], or images [8, 3, 8, 8].
"""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.capture.probes.linear_layers import LayersBelow
from trueline.laws.layers.columns import LayersInRow
from trueline.laws.layers.probe import row_of

CODE = "activation-missing"
D, T = 12, 4


class Net(nn.Module):
    """``compute(parts, x)`` of its parts."""

    def __init__(self, compute, **parts):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.compute(self, x)


class Part(nn.Module):
    """``compute(x)``, which may make layers."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.compute(x)


class Block(nn.Module):
    """A feed-forward part with a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)))


def param(*shape):
    return nn.Parameter(0.1 * torch.randn(*shape))


def losses(model, *, out=None, loss_of=functional.cross_entropy):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = None if out is None else trueline.watch(model, optimizer, out=out, plan={"every": 1})
    values = []
    for _ in range(4):
        loss = loss_of(model(torch.randn(8, D)), torch.randint(5, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.detach())
    if watch is not None:
        watch.close()
    return values


def judged(tmp_path, model, **settings):
    losses(model, out=tmp_path / "run", **settings)
    findings, why = asked(tmp_path / "run", CODE)
    assert why == []
    return findings


def told(out):
    """Widths of the layers that one layer could stand for, in the graph of ``out``."""
    pairs = [pair for _, pair in LayersBelow([out.sum()]).pairs() if pair is not None]
    rows = [row_of(pair, {}) for pair in pairs]
    return [(row.inputs, row.width, row.outputs) for row in rows if row.is_one]


def chain(*between, width=20, outputs=5):
    """Two layers with these between them."""
    return nn.Sequential(nn.Linear(D, width), *between, nn.Linear(width, outputs))


def by_hand(x):
    return (x @ param(D, 16) + param(16)) @ param(16, 5)


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (chain(), [(D, 20, 5)]),
        (chain(nn.Dropout(0.3)), [(D, 20, 5)]),
        (chain(Part(lambda x: -x * 0.5 / torch.tensor(3.0))), [(D, 20, 5)]),
        (chain(Part(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1))), [(D, 20, 5)]),
        (chain(Part(lambda x: x.view(2, 4, T, 20).flatten(0, 2))), [(D, 20, 5)]),
        (chain(Part(lambda x: x[:, -1])), [(D, 20, 5)]),
        (chain(Part(lambda x: x[:, 1:])), [(D, 20, 5)]),
        (chain(width=5), [(D, 5, 5)]),
        (chain(width=D), [(D, D, 5)]),
        (Part(by_hand), [(D, 16, 5)]),
        (Part(lambda x: torch.einsum("btd,de->bte", x @ param(D, 16), param(16, 5))), [(D, 16, 5)]),
        (Part(lambda x: x + chain(outputs=D)(functional.layer_norm(x * param(D), (D,)))), [(D, 20, D)]),
    ],
)
def test_linear_layers_with_nothing_between_them_are_told(model, layers):
    assert told(model(torch.randn(8, T, D))) == layers


def test_dropout_on_the_host_is_told_from_a_relu_written_as_a_product():
    first, second = nn.Linear(D, 20), nn.Linear(20, 5)
    hidden = first(torch.randn(8, D))
    assert told(second(hidden * (hidden > 0))) == []
    assert told(second(hidden * (hidden > 0).float())) == []
    assert told(second(functional.dropout(first(torch.randn(8, D)), 0.5))) == [(D, 20, 5)]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 16, 3)), [(3, 32, 16)]),
        (nn.Sequential(nn.Conv2d(3, 30, 3), nn.Dropout2d(0.5), nn.Conv2d(30, 16, 1)), [(3, 30, 16)]),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)), [(3, 8, 8)]),
        (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 5)), [(3, 8, 5)]),
        (
            nn.Sequential(nn.Conv2d(3, 48, 4, 4), Part(lambda x: x.flatten(2).transpose(1, 2)), nn.Linear(48, 16)),
            [(3, 48, 16)],
        ),
    ],
)
def test_convolutions_are_told_where_one_can_do_the_same(model, layers):
    assert told(model(torch.randn(8, 3, 8, 8))) == layers


def attended(x):
    query, key, value = nn.Linear(D, 3 * D)(nn.Linear(D, D)(x)).chunk(3, -1)
    return nn.Linear(D, 2 * D)(nn.Linear(D, D)(functional.scaled_dot_product_attention(query, key, value)))


def adapted(rank, *, frozen=False):
    base, down, up = nn.Linear(D, D).requires_grad_(not frozen), nn.Linear(D, rank), nn.Linear(rank, D)
    return lambda x: base(x) + 2 * up(down(functional.dropout(x, 0.1)))


def latent(x):
    """Two readers of one latent vector, without a norm."""
    shared = nn.Linear(D, 6)(x)
    return nn.Linear(6, D)(shared) * nn.Linear(6, D)(shared)


@pytest.mark.parametrize(
    "model",
    [
        chain(nn.ReLU()),
        chain(nn.GELU(), nn.Dropout(0.2)),
        chain(nn.PReLU()),
        chain(nn.Softmax(-1)),
        chain(nn.LayerNorm(20)),
        chain(Part(lambda x: x / x.norm(dim=-1, keepdim=True))),
        chain(Part(lambda x: x + torch.linspace(0, 1, 20))),  # positions
        chain(Part(lambda x: x + param(T, 20))),
        chain(Part(lambda x: x.mean(1))),
        chain(width=4),  # narrower than both
        nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 6), nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, D)),
        Part(lambda x: nn.Linear(D, D)(functional.silu(nn.Linear(D, D)(x)) * nn.Linear(D, D)(x))),
        Part(latent),
        Part(attended),
        Part(lambda x: nn.Linear(D, 8)(nn.MultiheadAttention(D, 2, batch_first=True)(x, x, x)[0])),
        Part(adapted(4)),
        Part(adapted(24)),
        Part(adapted(24, frozen=True)),
        Part(lambda x: adapted(24, frozen=True)(x * param(D))),
        Part(lambda x: nn.Linear(T, 3)(nn.Linear(D, D)(x).transpose(1, 2))),  # over features, then over positions
        Part(lambda x: nn.Linear(5, 9)(nn.Linear(D, 20)(x).view(8, T, 4, 5))),  # of each head
        Part(lambda x: (hidden := nn.Linear(D, D)(x)) + nn.Linear(D, D)(hidden)),
        Part(lambda x: nn.Linear(20, 5)(hidden := nn.Linear(D, 20)(x)).sum() + hidden.square().sum()),
        Part(lambda x: checkpoint(nn.Linear(D, D), nn.LSTM(D, D, batch_first=True)(x)[0], use_reentrant=False)),
        Part(lambda x: nn.Linear(20, 5)(nn.Linear(D, 20)(x) * nn.Linear(D, 1)(x).sigmoid())),
        Part(lambda x: torch.randn(8, T, T) @ nn.Linear(20, 5)(torch.randn(8, T, T) @ nn.Linear(D, 20)(x))),
    ],
)
def test_what_is_meant_or_not_linear_is_left_alone(model):
    x = torch.randn(8, T, D)
    assert told(model(x)) == []
    # as where more layers are in front of it
    assert told(model((x * param(D)).tanh())) == []


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 16, 3)),
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32).eval(), nn.Conv2d(32, 16, 3)),
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.Conv2d(32, 16, 1)),
        nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 16, 1)),  # depthwise separable
        nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 8, 1)),
        nn.Sequential(nn.ConvTranspose2d(3, 32, 2, 2), nn.Conv2d(32, 16, 3)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 16, 3)),  # ends of an autoencoder
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)),  # narrower than what a kernel covers
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(), nn.Linear(16, 5)),  # fewer numbers than the image has
        nn.Sequential(nn.Conv2d(3, 12, 3), nn.PixelShuffle(2), nn.Conv2d(3, 3, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 256), nn.Unflatten(1, (16, 4, 4)), nn.Conv2d(16, 8, 3)),
    ],
)
def test_convolutions_that_are_meant_are_left_alone(model):
    assert told(model(torch.randn(8, 3, 8, 8))) == []


def test_layers_are_told_by_name_in_the_order_of_the_model(tmp_path):
    model = nn.Sequential(Block(), Block(), nn.LayerNorm(D), nn.Linear(D, 20), nn.Dropout(0.1), nn.Linear(20, 5))
    (finding,) = judged(tmp_path, model)
    assert finding.severity == "confirm"
    assert finding.claim == (
        "0.up and 0.down are one linear map of [12 → 12]: nothing is between them. So are 1.up and 1.down; 3 and 5."
    )
    assert finding.evidence["names"] == ["0.up", "0.down", "1.up", "1.down", "3", "5"]


def test_a_row_of_layers_is_one_map(tmp_path):
    (finding,) = judged(tmp_path, nn.Sequential(nn.Linear(D, 20), nn.Linear(20, 20), nn.Dropout(0.1), nn.Linear(20, 5)))
    assert finding.claim == "0, 1 and 3 are one linear map of [12 → 5]: nothing but dropout is between them."
    assert "one layer of [12 → 5] does the same with 60 weights in place of 740" in finding.next[0]


@pytest.mark.parametrize(
    "compute",
    [
        lambda net, x: net.b(net.a(x)) + net.b(x),  # `b` is called on data, too: it judges what `a` generates
        lambda net, x: net.b(net.a(x)) + net.b(net.a(x.tanh()).relu()),
        lambda net, x: net.b(net.a(net.a(x))),
        lambda net, x: net.read(net.a(x)[:, None])[0][:, 0],
    ],
)
def test_layers_that_do_not_always_follow_each_other_are_left_alone(tmp_path, compute):
    parts = {"a": nn.Linear(D, D), "b": nn.Linear(D, D), "read": nn.GRU(D, D, batch_first=True)}
    assert judged(tmp_path, Net(compute, **parts)) == []


def test_a_layer_of_another_model_is_no_part_of_this_one(tmp_path):
    other = nn.Linear(20, 5)
    assert judged(tmp_path, nn.Linear(D, 20), loss_of=lambda out, y: functional.cross_entropy(other(out), y)) == []


def test_where_no_layer_is_seen_it_cannot_tell(tmp_path):
    losses(Net(lambda net, x: x * net.scale, scale=param(D)), out=tmp_path / "run")
    assert asked(tmp_path / "run", CODE)[1] != []


def test_the_row_is_read_as_it_was_written():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 5))
    (pair,) = (pair for _, pair in LayersBelow([model(torch.randn(8, 3, 8, 8)).sum()]).pairs() if pair)
    row = LayersInRow(2, (row_of(pair, {}),), True)
    assert LayersInRow.from_json(row.to_json()) == row


def test_losses_are_bitwise_equal_with_watching_on_and_off(tmp_path):
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, 20), nn.Dropout(0.3), nn.Linear(20, 5))

    assert losses(made(), out=tmp_path / "run") == losses(made())
