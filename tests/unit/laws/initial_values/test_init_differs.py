"""init-differs: a layer unlike its peers and weights that nothing has filled are found, and what is meant is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import init

import trueline
from trueline.laws.initial_values import init_differs
from trueline.laws.initial_values.columns import InitialValues
from trueline.laws.initial_values.init_differs import judge
from trueline.laws.initial_values.initial_values import InitialParams
from trueline.laws.initial_values.probe.values import numbers_of
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

LAYERS, WIDTH, SPREAD = 8, 32, 0.02


def begun(model):
    """What a Run would hold of ``model`` as it is."""
    named = [(name, param.detach()) for name, param in model.named_parameters() if param.is_floating_point()]
    values = [InitialValues(*numbers_of(param).tolist()) for _, param in named]
    return InitialParams(0, [name for name, _ in named], [tuple(param.shape) for _, param in named], values)


class Net(nn.Module):
    """Layers of two matrices each, drawn from a normal distribution; ``spreads`` are those of the layers."""

    def __init__(self, spreads=(SPREAD,) * LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)) for _ in spreads)
        self.head = nn.Linear(WIDTH, WIDTH)
        for layer, spread in zip(self.layers, spreads, strict=True):
            for linear in layer:
                init.normal_(linear.weight, std=spread)
        init.normal_(self.head.weight, std=SPREAD)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)

    @torch.no_grad()
    def with_weight(self, number, change, part=0):
        """The same with one weight changed in place."""
        change(self.layers[number][part].weight)
        return self


def findings_of(model):
    return [
        (finding.severity, finding.evidence["kind"], finding.evidence["names"]) for finding in judge([begun(model)])
    ]


def test_a_layer_that_was_left_out_is_found_with_its_spread_and_that_of_the_others():
    (finding,) = judge([begun(Net().with_weight(5, lambda weight: init.kaiming_uniform_(weight, math.sqrt(5))))])
    assert (finding.severity, finding.ranks, finding.step_first) == ("warning", (0,), 0)
    assert finding.evidence["names"] == ["layers.5.0.weight"]
    assert finding.measured == pytest.approx((3 * WIDTH) ** -0.5, rel=0.05)
    assert finding.expected == pytest.approx(SPREAD, rel=0.05)
    assert 0 < finding.false_alarm_rate < 1e-9


def test_a_layer_that_is_scaled_twice_is_found_where_spreads_fall_with_depth():
    by_depth = [SPREAD * (2 * (number + 1)) ** -0.5 for number in range(LAYERS)]
    assert findings_of(Net(by_depth)) == []
    by_depth[4] *= 0.3
    assert findings_of(Net(by_depth)) == [("warning", "peers", ["layers.4.0.weight", "layers.4.1.weight"])]


def test_small_weights_are_judged_though_one_of_them_has_long_tails_by_chance():
    normal = InitialValues(256, 0, 0, 0.0, SPREAD, 3.0, 3 * SPREAD)
    values = [normal] * 12
    values[3] = replace(normal, kurtosis=4.5)  # 4.9 standard errors, as one of some hundred draws
    values[5] = replace(normal, spread=2 * SPREAD)
    fresh = [InitialValues(16384, 0, 0, 0.0, 1.0, 3.0, 4.0)] * 10
    names = [f"layers.{number}.weight" for number in range(12)] + [f"other{number}" for number in range(10)]
    (finding,) = judge([InitialParams(0, names, [(2, 128)] * 22, [*values, *fresh])])
    assert finding.evidence["names"] == ["layers.5.weight"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weight: init.uniform_(weight, -SPREAD * 3**0.5, SPREAD * 3**0.5), "kurtosis is 1.8"),
        (lambda weight: init.constant_(weight, 0.01), "elements are all 0.01"),
        (init.zeros_, "elements are all 0,"),
    ],
    ids=["uniform", "constant", "zeros"],
)
def test_another_distribution_with_any_spread_is_found(change, words):
    (finding,) = judge([begun(Net().with_weight(3, change))])
    assert finding.severity == "warning"
    assert words in finding.claim


def test_one_matrix_of_the_last_layer_may_be_meant_and_all_of_them_not():
    scale = lambda weight: weight.mul_(0.1)  # noqa: E731
    model = Net().with_weight(LAYERS - 1, scale)
    assert findings_of(model) == [("info", "peers", ["layers.7.0.weight"])]
    names = ["layers.7.0.weight", "layers.7.1.weight"]
    assert findings_of(model.with_weight(LAYERS - 1, scale, part=1)) == [("warning", "peers", names)]


def test_layers_at_equal_distances_may_be_meant():
    spreads = [SPREAD * (3 if number % 4 == 1 else 1) for number in range(LAYERS)]
    ((severity, kind, names),) = findings_of(Net(spreads))
    assert (severity, kind, len(names)) == ("info", "peers", 4)


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [
        (1, math.nan, ("error", "nonfinite")),
        (0, -math.inf, ("error", "nonfinite")),
        (1, 1e20, ("warning", "garbage")),
        (0, 1e-40, ("warning", "garbage")),
    ],
)
def test_numbers_that_no_initialisation_gives_are_found_in_weights_and_biases(number, value, expected):
    model = Net()
    with torch.no_grad():
        model.layers[2][number].bias[:5] = value
    assert findings_of(model) == [(*expected, [f"layers.2.{number}.bias"])]


def test_decayed_weights_of_a_trained_model_are_left_alone():
    model = Net()
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.distributions.StudentT(3.0).sample(param.shape))
        model.layers[2][0].bias[:5] = 1e-40
    with pytest.raises(CannotTell, match="do not look drawn just now"):
        judge([begun(model)])


def test_trained_weights_of_which_one_layer_is_odd_are_left_alone():
    model = Net().with_weight(3, lambda weight: weight.mul_(5))
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(torch.randn_like(param))
    with pytest.raises(CannotTell, match="do not look drawn just now"):
        judge([begun(model)])


def test_matrices_that_torch_made_and_nothing_else_has_drawn_are_told():
    model = Net()
    model.head = nn.Linear(WIDTH, WIDTH)
    assert findings_of(model) == [("info", "left", ["head.weight"])]
    assert findings_of(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))) == []


def test_layers_that_begin_as_copies_are_left_alone():
    model = Net()
    for layer in model.layers:
        layer.load_state_dict(model.layers[0].state_dict())
    assert findings_of(model) == []


def test_a_model_without_repeated_layers_cannot_be_judged():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            for name in "abcde":
                setattr(self, name, nn.Linear(WIDTH, WIDTH))

    with pytest.raises(CannotTell, match="repeated in four layers"):
        judge([begun(Flat())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_numbers_are_those_of_numpy(dtype):
    torch.manual_seed(1)
    param = torch.rand(40, 30).to(dtype).t()
    param[3, 4] = math.nan
    x = param.double().numpy().ravel()
    x = x[np.isfinite(x)]
    away = x - x.mean()
    truth = (1200, 1, 0, x.mean(), x.std(), (away**4).mean() / (away**2).mean() ** 2, np.abs(x).max())
    assert numbers_of(param).tolist() == pytest.approx(truth, rel=1e-12)


def test_what_is_looked_at_is_of_all_columns():
    marked = torch.zeros(4096, 64)
    marked[:, 17] = math.inf
    values = InitialValues(*numbers_of(marked).tolist())
    assert values.looked <= 16384
    assert values.nonfinite / values.looked == pytest.approx(1 / 64, rel=0.05)


def test_they_are_recorded_once_and_judged_unless_training_had_begun(tmp_path):
    model = Net().with_weight(5, lambda weight: weight.mul_(4))
    expected = torch.stack([numbers_of(param.detach()) for param in model.parameters()])
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, tmp_path / "first")
    run = Run(tmp_path / "first")
    ((key, values),) = run.lists("initial_values").items()
    assert key == (0, 0)
    assert np.array_equal(np.asarray(values), expected.flatten().numpy(), equal_nan=True)
    (finding,) = init_differs.check(run)
    assert finding.evidence["names"] == ["layers.5.0.weight"]
    train(model, optimizer, tmp_path / "second")
    with pytest.raises(CannotTell, match="training had begun"):
        init_differs.check(Run(tmp_path / "second"))


def train(model, optimizer, folder):
    watch = trueline.watch(model, optimizer, out=folder)
    for _ in range(3):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


@pytest.mark.parametrize("resumed", [False, True])
def test_layers_that_are_one_module_are_named(tmp_path, monkeypatch, resumed):
    model = Net()
    model.layers = nn.ModuleList([model.layers[0]] * LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueline.watch(model, out=tmp_path / "run", optimizer=optimizer):
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()
    run = Run(tmp_path / "run")
    if resumed:  # what weights began with is not known then, which layers are one is
        monkeypatch.setattr(Run, "lists", lambda *_, **__: {})
    shared = [finding for finding in init_differs.check(run) if finding.evidence["kind"] == "one-module"]
    assert [(finding.severity, finding.evidence["names"]) for finding in shared] == [
        ("warning", [f"layers.{number}" for number in range(LAYERS)])
    ]
