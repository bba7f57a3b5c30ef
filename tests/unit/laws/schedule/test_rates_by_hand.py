"""rate-of-first-group and rate-replaced: schedules by hand that move one group alone, or bring a rate of their own."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.capture.probes.constructed_rates import constructed_rates
from trueline.laws.schedule import rate_of_first_group, rate_replaced

UPDATES = 16


@pytest.fixture(autouse=True)
def _listening():
    constructed_rates.listen()
    yield
    constructed_rates.stop()


def trained(folder, make, schedule, *, scheduler=None):
    """The Run of an optimizer that ``make`` makes of two layers, with ``schedule(step, optimizer)`` at each update."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = make(model)
    declared = scheduler and scheduler(optimizer)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for step in range(UPDATES):
            if schedule:
                schedule(step, optimizer)
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if declared:
                declared.step()
    return folder


def groups(first=0.1, second=0.1, **entries):
    """SGD of two groups, of which the second has ``entries`` of its own."""
    return lambda model: torch.optim.SGD(
        [
            {"params": list(model[0].parameters()), "lr": first, **dict.fromkeys(entries, 0)},
            {"params": list(model[1].parameters()), "lr": second, **entries},
        ],
        lr=0.5,
    )


def one(lr=2e-5):
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


def _first(step, optimizer):
    optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / UPDATES)


def _first_once(step, optimizer):
    if step == 8:
        optimizer.param_groups[0]["lr"] *= 0.1


def _all(step, optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - step / UPDATES)


def _second(step, optimizer):
    optimizer.param_groups[1]["lr"] = 0.1 * (1 - step / UPDATES)


def warm_up(peak, steps=4):
    def schedule(step, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, step / steps)

    return schedule


@pytest.mark.parametrize(
    ("make", "schedule"), [(groups(), _first), (groups(), _first_once), (groups(0.1, 1.0), _first)]
)
def test_a_schedule_of_the_first_group_alone_is_to_be_confirmed(tmp_path, make, schedule):
    (finding,) = asked(trained(tmp_path / "run", make, schedule), rate_of_first_group.CODE)[0]
    assert finding.severity == "confirm"
    assert "of parameter group 0 goes from 0.1 to 0.0" in finding.claim
    assert "that of group 1 stays at" in finding.claim


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (groups(), _all),
        (groups(), _second),
        (groups(0.1, 1.0), _first_once),  # a backbone that is lowered once, beside a head
        (groups(fix_lr=1), _first),  # SimSiam
        (groups(0.1, 0.0), _first),
        (one(0.1), _first),
    ],
)
def test_schedules_of_other_groups_are_left_alone(tmp_path, make, schedule):
    assert asked(trained(tmp_path / "run", make, schedule), rate_of_first_group.CODE) == ([], [])


def test_functions_of_each_group_are_declared_by_the_scheduler(tmp_path):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.9**step, lambda step: 1.0])

    findings, why = asked(trained(tmp_path / "run", groups(), None, scheduler=scheduler), rate_of_first_group.CODE)
    assert (findings, why) == ([], ["a scheduler of torch sets the learning rate"])


def test_a_warm_up_with_a_peak_of_its_own_is_to_be_confirmed(tmp_path):
    (finding,) = asked(trained(tmp_path / "run", one(), warm_up(1e-3)), rate_replaced.CODE)[0]
    assert finding.claim == (
        "The optimizer was made with the learning rate 2e-05, and no update has it: the schedule, which is none of "
        "torch's, goes from 0 to 0.001 at step 4, 50 times that."
    )
    assert finding.severity == "confirm"


def test_a_schedule_that_is_far_below_the_rate_is_to_be_confirmed(tmp_path):
    (finding,) = asked(trained(tmp_path / "run", one(0.1), warm_up(1e-3)), rate_replaced.CODE)[0]
    assert finding.claim.endswith("to 0.001 at step 4, 1/100 of that.")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (one(), warm_up(2e-5)),
        (one(), lambda step, optimizer: warm_up(2e-5)(step + 1, optimizer)),
        (one(), warm_up(2e-5 * 6)),  # scaled by the samples of a batch
        (one(), warm_up(1e-3, steps=64)),  # not reached yet: the rate may be that of a multiple
        (one(0.1), lambda step, optimizer: _all(step + 2, optimizer)),
        (one(2e-5), lambda step, optimizer: warm_up(1e-3)(max(step, 1), optimizer) if step else None),  # begins with it
        (groups(2e-5, 0.1), _all),
    ],
)
def test_schedules_that_have_the_rate_are_left_alone(tmp_path, make, schedule):
    assert asked(trained(tmp_path / "run", make, schedule), rate_replaced.CODE) == ([], [])


@pytest.mark.parametrize("lr", [0.0, 1.0, None])
def test_a_rate_that_stands_for_one_is_left_alone(tmp_path, lr):
    make = one(lr) if lr is not None else lambda model: torch.optim.AdamW(model.parameters())
    assert asked(trained(tmp_path / "run", make, warm_up(0.02)), rate_replaced.CODE)[0] == []


def test_a_schedule_of_torch_that_is_given_its_own_rate_is_left_alone(tmp_path):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=UPDATES)

    assert asked(trained(tmp_path / "run", one(), None, scheduler=scheduler), rate_replaced.CODE)[0] == []


def test_a_rate_that_a_configuration_names_is_left_alone(tmp_path):
    config = {"optimizer": {"lr": 2e-5}, "warmup": {"warmup_max_lr": 1e-3}}
    assert (
        asked(trained(tmp_path / "run", one(), warm_up(config["warmup"]["warmup_max_lr"])), rate_replaced.CODE)[0] == []
    )
