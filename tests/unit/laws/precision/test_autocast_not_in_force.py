"""autocast-not-in-force: products in float32 within autocast are found, and parts that are meant so are not."""

import sys
from types import SimpleNamespace

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.capture.job.environment import autocast_of
from trueline.laws.precision import autocast_not_in_force as law
from trueline.laws.precision.columns import Products
from trueline.schema.errors import CannotTell

STEPS = 10


class Off(nn.Module):
    """A part that runs with autocast switched off."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            return self.part(x.float())


class Product(torch.autograd.Function):
    """A product that a compiler has made a function of its own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x.float(), weight)
        with torch.autocast("cpu", enabled=False):
            return x.float() @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient.float() @ weight.T, x.T @ gradient.float()


class Compiled(nn.Module):
    """A model with such a function."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return Product.apply(x, self.weight)


class Checkpointed(nn.Module):
    """A part that is computed again in the backward pass."""

    def __init__(self, part, *, reentrant):
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x):
        return checkpoint(self.part, x.requires_grad_(), use_reentrant=self.reentrant)


def layers():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))


def trained(out, model, *, declared=True, dtype=torch.bfloat16, steps=STEPS):
    """The parameters after some steps under autocast; watched into ``out`` unless that is None."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, optimizer, out=out, plan={"every": 1})
    for _ in range(steps):
        with torch.autocast("cpu", dtype, enabled=declared):
            outputs = model(torch.randn(4, 8))
        outputs.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def judged(out):
    findings, reasons = asked(out, law.CODE)
    return [(finding.severity, finding.evidence["kind"], finding.evidence["names"]) for finding in findings], reasons


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Off(layers()), [("error", "all", ["part.0.weight", "part.3.weight"])]),
        (
            lambda: nn.Sequential(Off(layers()), nn.Linear(8, 4)),
            [("confirm", "most", ["0.part.0.weight", "0.part.3.weight"])],
        ),
        # a head in float32 is meant so
        (lambda: nn.Sequential(layers(), Off(nn.Linear(8, 4))), []),
        (layers, []),
        (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.Linear(8, 2)), []),
        (lambda: nn.Sequential(Off(nn.Conv1d(4, 4, 1))), [("error", "all", ["0.part.weight"])]),
        (lambda: Checkpointed(layers(), reentrant=False), []),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_runs_in_float32_within_autocast_is_found(tmp_path, make, expected, dtype):
    torch.manual_seed(0)
    trained(tmp_path / "run", make(), dtype=dtype)
    assert judged(tmp_path / "run") == (expected, [])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "settings", "why"),
    [
        (lambda: Off(layers()), {"declared": False}, "the model is not called within autocast"),
        (lambda: Off(layers()), {"steps": 5}, "at one step alone"),
        (Compiled, {}, "leaves no product"),
        (lambda: nn.Sequential(Compiled(), Off(layers())), {}, "keep their products to themselves"),
        (
            lambda: nn.Sequential(Checkpointed(layers(), reentrant=True), Off(nn.Linear(8, 4))),
            {},
            "keep their products",
        ),
    ],
)
def test_where_it_cannot_tell(tmp_path, make, settings, why):
    trained(tmp_path / "run", make(), **settings)
    findings, (reason,) = judged(tmp_path / "run")
    assert findings == []
    assert why in reason


def test_watching_leaves_a_training_as_it_is(tmp_path):
    plain, watched = ([torch.manual_seed(0), trained(out, Off(layers()))][1] for out in (None, tmp_path / "run"))
    assert all(map(torch.equal, plain, watched))


def run_of(path, by_rank):
    rows = healthy_rows(2, 10)
    for (step, rank), row in rows.items():
        if step in (2, 8) and rank in by_rank:
            row["products"] = by_rank[rank].to_json()
    return write_run(path, rows)


def in_float32(**changes):
    settings = {
        "autocast": {"cuda": "bfloat16"},
        "device": "cuda",
        "counts": {"float32": 2},
        "weights": {"float32": 2},
        "elements": {"float32": 20},
        "names": {"float32": ("a", "b")},
    }
    return Products(**{**settings, **changes})


def test_the_claim_names_dtype_device_and_parameters(tmp_path):
    (finding,) = law.check(run_of(tmp_path, {0: in_float32(), 1: in_float32()}))
    assert finding.ranks == (0, 1)
    assert (
        finding.claim == "The model is called within autocast to bfloat16 (cuda), but not one of its 2 matrix products "
        "runs in it: all run in float32, as if autocast were off (a and b; steps 2 to 8, ranks 0 and 1)."
    )


def test_autocast_of_another_device_is_said(tmp_path):
    (finding,) = law.check(run_of(tmp_path, {0: in_float32(autocast={"cpu": "bfloat16"})}))
    assert "autocast to bfloat16 (cpu), and its parameters are on cuda, but not one" in finding.claim


def test_a_rank_that_computes_in_autocast_is_not_named(tmp_path):
    healthy = in_float32(counts={"bfloat16": 2}, elements={"bfloat16": 20}, names={})
    (finding,) = law.check(run_of(tmp_path, {0: healthy, 1: in_float32()}))
    assert finding.ranks == (1,)


def test_products_in_float64_are_not_cast(tmp_path):
    assert law.check(run_of(tmp_path, {0: in_float32(counts={"float64": 2}, elements={"float64": 20})})) == []


def test_without_a_look_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no graph"):
        law.check(run_of(tmp_path, {}))


@pytest.mark.parametrize(
    ("make", "declared", "text"),
    [
        (layers, True, "matrix products are computed in bfloat16 (step 8)"),
        (layers, False, None),
        (
            lambda: nn.Sequential(layers(), Off(nn.Linear(8, 4))),
            True,
            "of 3 matrix products 2 are in bfloat16 and 1 are in float32 (step 8)",
        ),
    ],
)
def test_a_fact_tells_in_which_dtypes_products_are(tmp_path, make, declared, text):
    trained(tmp_path / "run", make(), declared=declared)
    facts = {fact.name: fact.text for fact in trueline.facts(tmp_path / "run").facts}
    assert facts.get("products") == text


class Lengthless(nn.Module):
    """Has a length only where the module within has one, as a compiled module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __len__(self):
        raise TypeError


@pytest.mark.parametrize(
    ("precision", "prepared", "expected"),
    [("bf16", True, {"cpu": "torch.bfloat16"}), ("no", True, {}), ("bf16", False, {})],
)
def test_autocast_that_accelerate_puts_into_the_forward_is_known(monkeypatch, precision, prepared, expected):
    state = type("AcceleratorState", (), {"_shared_state": {"_mixed_precision": precision}})
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(AcceleratorState=state))
    model = layers()
    if prepared:
        model._original_forward = model.forward
    assert autocast_of(model) == expected
    assert autocast_of(nn.ModuleDict({"module": model})) == expected
    assert autocast_of(nn.ModuleDict({"module": Lengthless(model)})) == {}
    with torch.autocast("cpu", torch.float16):
        assert autocast_of(model) == {"cpu": "torch.float16"}
