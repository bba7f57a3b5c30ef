"""evaluation-draws, evaluation-state: what a pass that trains nothing draws and changes is told, and is as it was."""

import copy
from pathlib import Path

import pytest
import torch
from tests.forked_scripts import run_watched
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm

import trueline

ROWS, WIDTH, STEPS = 8, 6, 8


class Net(nn.Module):
    """Two layers, and between them what ``between(self, h)`` returns."""

    def __init__(self, between, *, wrap=lambda layer: layer):
        super().__init__()
        self.first, self.last = wrap(nn.Linear(WIDTH, WIDTH)), wrap(nn.Linear(WIDTH, WIDTH))
        self.between = between
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.last(self.between(self, self.first(x)))


def evaluated(model):
    model.eval()
    with torch.no_grad():
        outputs = [model(torch.full((ROWS, WIDTH), float(number))) for number in (1, 2)]
    model.train()
    return outputs


def trained(out, model, *, before=evaluated):
    """The parameters after some steps with an evaluation every other one, and in front; watched unless out is None."""
    torch.manual_seed(1)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    seen = list(before(model) or ())
    for step in range(STEPS):
        functional.mse_loss(model(torch.rand(ROWS, WIDTH)), torch.zeros(ROWS, WIDTH)).backward()
        updates.step()
        updates.zero_grad()
        if step % 2:
            seen += evaluated(model)
    if watch is not None:
        watch.close()
    return [*seen, *(tensor.detach().clone() for tensor in model.state_dict().values())]


def told(out):
    """Kind, whether it is to be confirmed, and claim, of what is said of evaluations."""
    findings, _ = asked(out, "evaluation-draws", "evaluation-state")
    is_asked = bool(findings) and "to confirm" in str(trueline.check(out).verdict)
    return [(finding.evidence["kind"], is_asked, finding.claim) for finding in findings]


def dropout_on(model, h):
    model.drop.train()
    return model.drop(h)


def codebook(model, h):
    model.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
    return h - model.mean


def replaced(model, h):
    model.mean = 0.9 * model.mean + 0.1 * h.detach().mean(0)
    return h


def normalized(model, h):
    model.norm.train()
    return model.norm(h)


def attention(model, h):
    x = h.reshape(ROWS, 1, 3, 2)
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1).reshape(h.shape)


def counting(model, h):
    model.calls += 1
    model.cache = h.detach().mean().reshape(1)
    return h


DROPS = {
    "function": lambda model, h: functional.dropout(h, 0.3),
    "module": dropout_on,
    "attention": attention,
    "of torch": lambda model, h: torch.dropout(h, 0.3, True),
}
DRAWS = {
    "noise": lambda model, h: h + torch.randn_like(h),
    "paths": lambda model, h: h * (torch.rand(len(h), 1) > 0.1),
    "gumbel": lambda model, h: functional.gumbel_softmax(h),
}
CHANGES = {"codebook": codebook, "replaced": replaced, "norm": normalized}
QUIET = {
    "dropout": lambda model, h: model.drop(h),
    "by mode": lambda model, h: functional.dropout(h, 0.3, training=model.training),
    "norm": lambda model, h: model.norm(h),
    "noise": lambda model, h: h + torch.randn_like(h) if model.training else h,
    "counter and cache": counting,
    "own generator": lambda model, h: h + torch.rand(h.shape, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("between", DROPS.values(), ids=DROPS)
def test_dropout_in_an_evaluation_is_to_be_confirmed_with_its_line(tmp_path, between):
    trained(tmp_path / "run", Net(between))
    ((kind, is_asked, claim),) = told(tmp_path / "run")
    assert (kind, is_asked) == ("drops", True)
    assert "test_untrained_passes.py:" in claim
    assert "in all 7 that were looked at, before steps 0 to 8" in claim


def test_a_dropout_module_that_eval_does_not_reach_is_named(tmp_path):
    trained(tmp_path / "run", Net(dropout_on))
    assert "`drop` is in training mode" in told(tmp_path / "run")[0][2]


@pytest.mark.parametrize("between", DRAWS.values(), ids=DRAWS)
def test_other_draws_are_an_information_alone(tmp_path, between):
    trained(tmp_path / "run", Net(between))
    ((kind, is_asked, claim),) = told(tmp_path / "run")
    assert (kind, is_asked) == ("draws", False)
    assert "test_untrained_passes.py:" in claim


@pytest.mark.parametrize("between", CHANGES.values(), ids=CHANGES)
def test_what_an_evaluation_changes_is_to_be_confirmed(tmp_path, between):
    trained(tmp_path / "run", Net(between))
    ((kind, is_asked, claim),) = told(tmp_path / "run")
    assert (kind, is_asked) == ("changed-in-evaluation", True)
    assert ("`norm.running_mean`" if between is normalized else "`mean`") in claim


@pytest.mark.in_turn
@pytest.mark.parametrize("between", QUIET.values(), ids=QUIET)
def test_evaluations_that_draw_and_change_nothing_are_left_alone(tmp_path, between):
    trained(tmp_path / "run", Net(between))
    assert told(tmp_path / "run") == []


@pytest.mark.in_turn
@pytest.mark.parametrize("between", [*DROPS.values(), *DRAWS.values(), *CHANGES.values()])
def test_a_watched_job_draws_and_computes_the_same(tmp_path, between):
    model = Net(between, wrap=spectral_norm)
    watched, plain = trained(tmp_path / "run", copy.deepcopy(model)), trained(None, copy.deepcopy(model))
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


def set_anew(layer):
    """The norm's vectors are those of other weights."""
    layer = parametrizations.spectral_norm(layer)
    torch.manual_seed(3)
    with torch.no_grad():
        layer.parametrizations.weight.original.normal_(0, 2)
    return layer


def warmed_up(model):
    with torch.no_grad():
        for _ in range(20):
            model(torch.rand(ROWS, WIDTH))
    return evaluated(model)


@pytest.mark.parametrize(("wrap", "weights"), [(spectral_norm, 2), (set_anew, 2)])
def test_a_spectral_norm_that_is_at_its_start_in_an_evaluation_is_to_be_confirmed(tmp_path, wrap, weights):
    torch.manual_seed(5)
    trained(tmp_path / "run", Net(lambda model, h: h, wrap=wrap))
    kind, is_asked, claim = told(tmp_path / "run")[0]
    assert (kind, is_asked) == ("norm-off", True)
    assert claim.startswith("An evaluation before the first step left the spectral norm of ")
    assert "at its start: `" in claim


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("wrap", "before"),
    [
        (spectral_norm, warmed_up),
        (parametrizations.spectral_norm, evaluated),
        (parametrizations.weight_norm, evaluated),
        (spectral_norm, lambda model: None),
    ],
)
def test_norms_that_are_known_when_they_are_used_are_left_alone(tmp_path, wrap, before):
    torch.manual_seed(5)
    trained(tmp_path / "run", Net(lambda model, h: h, wrap=wrap), before=before)
    assert told(tmp_path / "run") == []


def dry_run(model):
    with torch.no_grad():
        model(torch.zeros(ROWS, WIDTH))


def test_statistics_of_a_dry_run_before_training_are_an_information(tmp_path):
    trained(tmp_path / "run", Net(lambda model, h: model.norm(h)), before=dry_run)
    ((kind, is_asked, claim),) = told(tmp_path / "run")
    assert (kind, is_asked) == ("changed-before-training", False)
    assert "`norm.running_mean`" in claim


def test_an_evaluation_that_raises_is_forgotten(tmp_path):
    def failing(model, h):
        if not model.training and h.abs().max() > 1e6:
            raise ValueError("too large")
        return model.drop(h)

    def before(model):
        model.eval()
        with pytest.raises(ValueError, match="too large"), torch.no_grad():
            model(torch.full((ROWS, WIDTH), 1e9))
        model.train()
        torch.rand(3)

    trained(tmp_path / "run", Net(failing), before=before)
    assert told(tmp_path / "run") == []


SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("ready", torch.tensor(0.0))
    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1))
                self.ready.fill_(1.0)
        return x * self.scale

norm = nn.utils.spectral_norm
inner = {
    "norm": lambda: nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU()),
    "drop": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "actnorm": lambda: nn.Sequential(nn.Linear(4, 4), ActNorm()),
    "batch": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
}[sys.argv[1]]()
model = nn.Sequential(inner, nn.Linear(4, 2))
if sys.argv[1] == "batch":
    model(torch.zeros(3, 4))
model.eval()
if sys.argv[1] == "drop":
    inner[1].train()
try:
    with torch.no_grad():
        model(torch.ones(3, 5))
except RuntimeError:
    pass
for _ in range(3):
    with torch.no_grad():
        model(torch.ones(3, 4))
model.train()
updates = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    F.mse_loss(model(torch.rand(8, 4)), torch.zeros(8, 2)).backward()
    updates.step()
    updates.zero_grad()
"""
EARLY = {
    "norm": ("norm-off", "`0.0.weight`"),
    "drop": ("drops", "`0.1` is in training mode"),
    "actnorm": ("changed-in-evaluation", "`0.1.scale`"),
    "batch": ("changed-before-training", "`0.1.running_mean`"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", EARLY)
def test_passes_before_anything_is_trained_are_seen_from_outside(tmp_path, kind):
    script = Path(tmp_path, "train.py")
    script.write_text(SCRIPT)
    run_watched(script, kind, out=tmp_path / "run", world_size=1)
    ((found, _, claim),) = told(tmp_path / "run")
    assert found == EARLY[kind][0]
    assert EARLY[kind][1] in claim
