"""rows-unused: a part of a layer that nobody reads; parts that are all read, and rows without a gradient elsewhere."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

WIDTH, STEPS = 16, 40


class Parts(nn.Module):
    """A layer of ``num`` parts, of which ``read`` are used."""

    def __init__(self, num, read, width=WIDTH):
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, num * width), nn.Linear(width, 1)
        self.num, self.read = num, read

    def forward(self, x):
        parts = self.layer(x).chunk(self.num, -1)
        return self.head(sum(torch.tanh(parts[number]) for number in self.read))


class Pixels(nn.Module):
    """Gated convolutions, whose gate is what it gates, or not."""

    def __init__(self, *, gate):
        super().__init__()
        self.conv, self.head, self.gate = nn.Conv1d(1, 2 * WIDTH, 3, padding=1), nn.Linear(WIDTH * WIDTH, 1), gate

    def forward(self, x):
        h = self.conv(x[:, None])
        return self.head((h[:, :WIDTH] * torch.sigmoid(h[:, WIDTH:] if self.gate else h[:, :WIDTH])).flatten(1))


class Attention(nn.Module):
    def __init__(self, *, value=2):
        super().__init__()
        self.qkv, self.head, self.value = nn.Linear(1, 3 * WIDTH), nn.Linear(WIDTH, 1), value

    def forward(self, x):
        parts = self.qkv(x[..., None]).chunk(3, -1)
        return self.head(functional.scaled_dot_product_attention(parts[0], parts[1], parts[self.value])).mean(1)


class Gated(nn.Module):
    """What is modulated by a layer that begins with gates of 0."""

    def __init__(self):
        super().__init__()
        self.modulation, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x):
        shift, scale, gate = self.modulation(x).chunk(3, -1)
        return self.head(x + gate * torch.tanh(x * (1 + scale) + shift))


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, 4 * WIDTH).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return (self.base(x) + self.lora_B(self.lora_A(x))).mean(1, keepdim=True)


class Experts(nn.Module):
    """Of four experts in one layer, ``num`` a step are reached."""

    def __init__(self, num=1):
        super().__init__()
        self.num = num
        self.experts, self.head, self.calls = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 1), 0

    def forward(self, x):
        self.calls += 1
        parts = self.experts(x).chunk(4, -1)
        return self.head(sum(parts[(self.calls // 2 + number) % 4] for number in range(self.num)))


class Actions(nn.Module):
    """Values of 18 actions, of which one is taken."""

    def __init__(self):
        super().__init__()
        self.values = nn.Linear(WIDTH, 18)

    def forward(self, x):
        return self.values(x[:1]).gather(1, torch.randint(0, 18, (1, 1))).expand(len(x), 1)


def dead_units():
    """Half of the units of a layer, and more, are off for all inputs."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
    with torch.no_grad():
        model[0].bias[torch.randperm(32, generator=torch.Generator().manual_seed(3))[:17]] = -100.0
    return model


def trained(out, model, *, steps=STEPS, **keys):
    torch.manual_seed(1)
    optimizer = torch.optim.Adam([param for param in model.parameters() if param.requires_grad], lr=0.01)
    losses = []
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}, **keys) if out else torch.enable_grad():
        for _ in range(steps):
            x = torch.randn(32, WIDTH)
            loss = (model(x) - x[:, :1].sin()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return [*losses, *(param.detach().clone() for param in model.parameters())]


def said(out):
    findings, missing = asked(out, "rows-unused")
    return [finding.claim for finding in findings], missing


def test_a_half_that_is_never_read_is_found(tmp_path):
    trained(tmp_path, Parts(2, [0, 0]))
    (claim,), _ = said(tmp_path)
    assert claim == (
        "16 of 32 rows of layer.weight (16 to 31) never had a gradient, at 8 steps that were looked at: half of what "
        "this layer makes is not used."
    )


FAULTY = {
    "first of three": (lambda: Parts(3, [1, 2]), "16 of 48 rows of layer.weight (0 to 15)", "a third of"),
    "middle of four": (lambda: Parts(4, [0, 2, 3]), "16 of 64 rows of layer.weight (16 to 31)", "a quarter of"),
    "two of three": (lambda: Parts(3, [1, 1]), None, None),
    "two of three in a row": (lambda: Parts(3, [0]), "32 of 48 rows of layer.weight (16 to 47)", "two thirds of"),
    "a gate that is what it gates": (lambda: Pixels(gate=False), "16 of 32 rows of conv.weight (16 to 31)", "half of"),
    "a value that is the key": (lambda: Attention(value=1), "16 of 48 rows of qkv.weight (32 to 47)", "a third of"),
    "several layers": (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Parts(2, [1]), nn.Linear(1, WIDTH), Parts(2, [1])),
        "16 of 32 rows of 1.layer.weight (0 to 15)",
        "is not used, as in 1 further layer.",
    ),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("make", "head", "tail"), FAULTY.values(), ids=FAULTY)
def test_parts_that_are_never_read_are_found(tmp_path, make, head, tail):
    trained(tmp_path, make())
    claims, _ = said(tmp_path)
    if head is None:  # two runs, which may be anything
        assert claims == []
        return
    (claim,) = claims
    assert claim.startswith(head)
    assert tail in claim


HEALTHY = {
    "all parts": lambda: Parts(2, [0, 1]),
    "gate": lambda: Pixels(gate=True),
    "attention": Attention,
    "gates of 0 at first": Gated,
    "adapter": Adapter,
    "experts in turn": Experts,
    "experts by twos": lambda: Experts(2),
    "actions": Actions,
    "dead units": dead_units,
    "parts of four rows": lambda: Parts(2, [0], width=4),
    "a quarter of six rows": lambda: Parts(4, [1, 2, 3], width=6),
    "a layer of which nothing is used": lambda: nn.Sequential(nn.Linear(WIDTH, 32), Zero(), nn.Linear(32, 1)),
}


class Zero(nn.Module):
    def forward(self, x):
        return 0 * x


@pytest.mark.in_turn
@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_other_layers_are_silent(tmp_path, make):
    trained(tmp_path, make())
    assert said(tmp_path)[0] == []


def test_ties_and_frozen_layers_are_not_looked_at(tmp_path):
    model = Parts(2, [0])
    model.layer.requires_grad_(False)
    model.table = nn.Embedding(32, WIDTH)
    model.tied = nn.Linear(WIDTH, 32, bias=False)
    model.tied.weight = model.table.weight
    model.forward = lambda x: model.tied(x)[:, :16].mean(1, keepdim=True)
    trained(tmp_path, model)
    claims, missing = said(tmp_path)
    assert claims == []
    assert "no layer of 16 outputs or more" in missing[0]


def test_a_few_steps_tell_nothing(tmp_path):
    trained(tmp_path, Parts(2, [0]), steps=8)
    claims, missing = said(tmp_path)
    assert claims == []
    assert "at 5 steps" in missing[0]


def test_rows_that_were_reached_before_a_restart_are_silent(tmp_path):
    trained(tmp_path, Parts(2, [0, 1]), steps=12)
    trained(tmp_path, Parts(2, [0]), steps=4, resume=True, step=12)
    assert said(tmp_path) == ([], [])


def test_a_training_is_bitwise_what_it_is_unwatched(tmp_path):
    models = []
    for out in (tmp_path, None):
        torch.manual_seed(0)
        models.append(trained(out, Parts(2, [0])))
    assert all(torch.equal(*pair) for pair in zip(*models, strict=True))
