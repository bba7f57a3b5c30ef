"""update-lost: parameters in 16 bits that no update changes by a bit, beside others that train."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.trained_updates import adamw, mlp, trained
from torch import nn

import trueline
from trueline.laws.optimizer import update_lost


def told(run):
    findings, _ = asked(run, update_lost.CODE)
    return [
        (one.severity, one.evidence.get("kind"), one.evidence["names"]) for one in findings if one.severity != "info"
    ]


@pytest.mark.parametrize(
    "make",
    [
        adamw,
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda model: torch.optim.AdamW(
            [
                {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=1e-3,
        ),
    ],
)
def test_weights_of_norms_that_rounding_keeps_at_1_are_to_be_confirmed(tmp_path, make):
    trained(tmp_path / "run", make, dtype=torch.bfloat16)
    assert told(tmp_path / "run") == [("confirm", "never-moved", ["1.weight"])]
    (claim,) = [one.claim for one in asked(tmp_path / "run", update_lost.CODE)[0] if one.severity == "confirm"]
    assert claim.startswith("The parameter 1.weight is bfloat16 and never changes: updates by Adam")
    assert claim.endswith("less than half a step of bfloat16 there.")


def test_what_is_lost_of_all_updates_is_said_once(tmp_path):
    trained(tmp_path / "run", lambda model: adamw(model, lr=1e-5), dtype=torch.bfloat16)
    assert [severity for severity, *_ in told(tmp_path / "run")] == ["warning"]


def frozen():
    model = mlp()
    model[1].weight.requires_grad_(False)
    return model


def without_norm():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def warmed_up(number, model, optimizer):
    optimizer.param_groups[0]["lr"] = 1e-3 * (number + 1)


def without_rate(number, model, optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.0


def rounded_up(number, model, optimizer):
    """Something else moves them once."""
    if number == 5:
        model[1].weight.data[0] = 0.99


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": torch.float32},
        {"make": lambda model: adamw(model, lr=1e-2)},
        {"model": frozen},
        {"model": without_norm},
        {"before": warmed_up},
        {"before": without_rate},
        {"before": rounded_up},
        {"steps": update_lost.FEWEST - 2},
        {"make": lambda model: adamw([p for p in model.parameters() if p is not model[1].weight])},
    ],
)
def test_healthy_trainings_are_left_alone(tmp_path, settings):
    trained(tmp_path / "run", **{"dtype": torch.bfloat16, **settings})
    assert told(tmp_path / "run") == []


def test_a_copy_in_float32_that_the_optimizer_updates_is_left_alone(tmp_path):
    """Its weights stay the same in bfloat16 for a while, too, and go on."""
    torch.manual_seed(0)
    model = mlp().to(torch.bfloat16)
    masters = [nn.Parameter(param.detach().float()) for param in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-5)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(12):
            model(torch.randn(8, 16).bfloat16()).float().square().mean().backward()
            for master, param in zip(masters, model.parameters(), strict=True):
                master.grad, param.grad = param.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for master, param in zip(masters, model.parameters(), strict=True):
                    param.copy_(master)
    assert told(tmp_path / "run") == []
