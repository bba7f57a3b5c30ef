"""load-undone: weights that are drawn anew after they were loaded are named; what keeps them in any form is silent."""

import copy
import functools

import pytest
import torch
from safetensors.torch import load_model, save_model
from tests.unit.asked import asked
from torch import nn
from torch.nn.utils import parametrizations
from transformers import BertConfig, BertModel

import trueline
from trueline.capture.probes.loads import loads
from trueline.laws.initial_values import load_undone

ROWS, WIDTH = 30, 16


class Encoder(nn.Module):
    def __init__(self, rows=ROWS):
        super().__init__()
        self.embed = nn.Embedding(rows, WIDTH)
        self.build()
        self.fc = nn.Linear(WIDTH, 3)

    def build(self):
        blocks = [[nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU()] for _ in range(4)]
        self.body = nn.Sequential(*(layer for block in blocks for layer in block))

    def forward(self, x):
        return self.fc(self.body(self.embed(x).mean(1)))


class Wrapped(nn.Module):
    """A head on a backbone that was loaded; it initialises all that it has."""

    def __init__(self, backbone, init):
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(3, 2)
        self.apply(init)

    def forward(self, x):
        return self.head(self.backbone(x))


@functools.cache
def checkpoint(seed=0):
    """Weights that have been trained for a while."""
    torch.manual_seed(seed)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        x = torch.randint(0, ROWS, (16, 5))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x.sum(1) % 3).backward()
        optimizer.step()
    return model.state_dict()


def loaded(seed=0):
    model = Encoder()
    model.load_state_dict(copy.deepcopy(checkpoint(seed)))
    return model


@pytest.fixture(autouse=True)
def _listening():
    checkpoint(0), checkpoint(1)
    torch.manual_seed(2)
    loads.listen()
    yield
    loads.stop()


def trained(folder, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=folder, plan={"every": 1}) if folder else None
    for step in range(2):
        draw = torch.Generator().manual_seed(step)
        model(torch.randint(0, ROWS, (6, 5), generator=draw)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return model


def said(folder, model):
    trained(folder, model)
    findings, why = asked(folder, load_undone.CODE)
    assert why == []
    return findings


def xavier(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def normal(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.data.normal_(std=0.02)
    if isinstance(module, nn.LayerNorm):
        module.reset_parameters()


def applied(init):
    return loaded().apply(init)


def reset():
    model = loaded()
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def built_again():
    model = loaded()
    model.embed = nn.Embedding(ROWS, WIDTH)
    model.build()
    return model


def constructed_again():
    model = loaded()
    model = Encoder()
    return model  # noqa: RET504


def constructed_again_inside():
    model = loaded()
    model = nn.Sequential(Encoder())
    return model  # noqa: RET504


def by_file(folder):
    save_model(loaded(), folder / "model.safetensors")
    model = Encoder()
    load_model(model, folder / "model.safetensors")
    return Wrapped(model, normal)


UNDONE = {
    "apply": lambda folder: applied(normal),
    "apply to layers of one kind": lambda folder: applied(xavier),
    "reset": lambda folder: reset(),
    "a wrapper": lambda folder: Wrapped(loaded(), normal),
    "layers made again": lambda folder: built_again(),
    "made again": lambda folder: constructed_again(),
    "made again in another": lambda folder: constructed_again_inside(),
    "a file of safetensors": by_file,
    "cast and drawn": lambda folder: loaded().bfloat16().float().apply(normal),
    "frozen": lambda folder: Wrapped(loaded().requires_grad_(False), normal),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", UNDONE)
def test_weights_that_are_drawn_behind_the_load_are_to_be_confirmed(tmp_path, name):
    (finding,) = said(tmp_path / "run", UNDONE[name](tmp_path))
    assert (finding.severity, finding.code) == ("confirm", load_undone.CODE)
    assert "test_load_undone.py:" in finding.claim
    assert finding.evidence["kind"] == ("gone" if name.startswith("made again") else "drawn")


def test_the_claim_names_the_load_and_how_much_of_it_is_left(tmp_path):
    (finding,) = said(tmp_path / "run", applied(xavier))
    line = finding.claim.partition("(")[2].partition(")")[0]
    assert finding.claim == (
        f"9 of 18 parameters loaded by load_state_dict into Encoder ({line}) were drawn anew before the first update: "
        "body.1.weight, body.1.bias, body.4.weight and 6 more."
    )


def test_scattered_layers_are_to_be_confirmed_though_they_are_few(tmp_path):
    model = loaded()
    for number in (4, 10):
        model.body[number].reset_parameters()
    model.embed.reset_parameters()
    (finding,) = said(tmp_path / "run", model)
    assert finding.evidence == {
        "kind": "places",
        "names": ["embed.weight", *(f"body.{number}.{name}" for number in (4, 10) for name in ("weight", "bias"))],
        "num_compared": finding.evidence["num_compared"],
    }


def test_an_embedding_that_was_made_longer_and_drawn_as_a_whole_is_to_be_confirmed(tmp_path):
    model = loaded()
    model.embed = nn.Embedding(ROWS + 4, WIDTH)
    (finding,) = said(tmp_path / "run", model)
    assert finding.evidence["kind"] == "rows"
    assert finding.claim.startswith("embed.weight was loaded with 30 rows by load_state_dict into Encoder (")
    assert finding.claim.endswith("and drawn anew as a whole before the first update, with 4 rows more.")


@pytest.mark.in_turn
def test_a_pretrained_backbone_that_its_wrapper_initialises_is_to_be_confirmed(tmp_path):
    config = BertConfig(
        vocab_size=ROWS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    first = BertModel(config, add_pooling_layer=False)
    for param in first.parameters():
        param.data.mul_(1 + torch.rand_like(param))
    first.save_pretrained(tmp_path / "bert")

    class Classifier(nn.Module):
        def __init__(self, init):
            super().__init__()
            self.bert = BertModel.from_pretrained(tmp_path / "bert", add_pooling_layer=False)
            self.head = nn.Linear(16, 3)
            self.apply(init)

        def forward(self, x):
            return self.head(self.bert(x).last_hidden_state[:, 0])

    assert said(tmp_path / "healthy", Classifier(lambda module: None)) == []
    loads.stop(), loads.listen()
    (finding,) = said(tmp_path / "run", Classifier(normal))
    assert "parameters loaded by from_pretrained into BertModel (" in finding.claim


def head_drawn(model):
    model.fc.reset_parameters()


def last_blocks_drawn(model):
    for layer in [*model.body[-5:], model.fc]:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()


def head_replaced(model):
    model.fc = nn.Linear(WIDTH, 3)


def layers_replaced(model):
    model.embed = nn.Embedding(ROWS, WIDTH)
    for number in (4, 10):
        model.body[number] = nn.Linear(WIDTH, WIDTH)


def other_vocabulary(model):
    model.embed = nn.Embedding(ROWS, WIDTH)


def longer(model):
    rows = model.embed.weight.data
    model.embed = nn.Embedding(ROWS + 4, WIDTH)
    model.embed.weight.data[:ROWS] = rows


@torch.no_grad()
def averaged(model):
    for param, other in zip(model.parameters(), checkpoint(1).values(), strict=True):
        param.lerp_(other, 0.5)


@torch.no_grad()
def merged(model):
    for layer in model.body:
        if isinstance(layer, nn.Linear):
            layer.weight += 0.1 * torch.randn(WIDTH, 4) @ torch.randn(4, WIDTH)


@torch.no_grad()
def pruned(model):
    for param in model.parameters():
        param.mul_(param.abs() > param.abs().median())


@torch.no_grad()
def other_checkpoint_by_hand(model):
    for name, param in model.named_parameters():
        param.copy_(3 * checkpoint(1)[name] ** 3)


def parametrized(model):
    for layer in [layer for layer in model.body if isinstance(layer, nn.Linear)]:
        parametrizations.weight_norm(layer)


@torch.no_grad()
def norms_reset(model):
    for layer in model.body:
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


HEALTHY = {
    "as loaded": lambda model: None,
    "bfloat16": lambda model: model.bfloat16(),
    "half and back": lambda model: model.half().float(),
    "double": lambda model: model.double(),
    "an average": averaged,
    "a merged adapter": merged,
    "pruned": pruned,
    "noise": lambda model: [
        param.data.add_(0.1 * param.std() * torch.randn_like(param)) for param in model.parameters()
    ],
    "scaled": lambda model: [param.data.mul_(0.5) for param in model.parameters()],
    "weight norm": parametrized,
    "a head that is drawn": head_drawn,
    "last blocks that are drawn": last_blocks_drawn,
    "a head that is replaced": head_replaced,
    "layers that are replaced": layers_replaced,
    "another vocabulary": other_vocabulary,
    "rows that are added": longer,
    "norms that are reset": norms_reset,
    "a second checkpoint": lambda model: model.apply(normal).load_state_dict(checkpoint(1)),
    "a second checkpoint by hand": other_checkpoint_by_hand,
    "its own state": lambda model: model.load_state_dict(model.state_dict()),
    "a teacher that is drawn": lambda model: loaded().apply(normal),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_still_that_which_was_loaded_is_silent(tmp_path, name):
    model = loaded()
    HEALTHY[name](model)
    assert said(tmp_path / "run", model) == []


def test_a_model_beside_one_that_was_loaded_is_its_own(tmp_path):
    teacher = loaded()
    trained(tmp_path / "run", Encoder())
    assert asked(tmp_path / "run", load_undone.CODE) == (
        [],
        ["nothing was loaded before training, or what was is kept in another form now"],
    )
    assert teacher is not None


def test_what_is_loaded_while_training_goes_on_is_not_looked_at(tmp_path):
    trained(None, Encoder())
    loaded()
    trained(tmp_path / "run", Encoder())
    assert asked(tmp_path / "run", load_undone.CODE)[0] == []


def test_where_nobody_listens_it_cannot_be_told(tmp_path):
    loads.stop()
    trained(tmp_path / "run", applied(normal))
    _, (why,) = asked(tmp_path / "run", load_undone.CODE)
    assert why == "what was loaded before training is seen only of jobs that `trueline run` starts"


def test_watching_leaves_a_training_as_it_is(tmp_path):
    values = []
    for out in (None, tmp_path / "run"):
        torch.manual_seed(0)
        model = trained(out, applied(xavier))
        values.append([*model.state_dict().values(), torch.get_rng_state()])
    assert all(map(torch.equal, *values))
