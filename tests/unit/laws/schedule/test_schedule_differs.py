"""Learning rates against the schedules that a script has made: what people do is left alone."""

import pytest
import torch
from tests.unit.trained_updates import mlp
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import trueline
from trueline.laws.schedule import schedule_differs
from trueline.schema.errors import CannotTell

STEPS = 12


def trained(folder, make, advance, *, first=0, steps=STEPS, resume=False, early=None):
    """``STEPS`` updates with the scheduler that ``make`` makes, stepped by ``advance(step, scheduler, optimizer)``."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    with trueline.watch(model, optimizer, out=folder, step=first or None, resume=resume):
        for step in range(first, first + steps):
            model(torch.randn(8, 16)).square().mean().backward()
            if early is not None:
                early(step, scheduler, optimizer)
            optimizer.step()
            advance(step, scheduler, optimizer)
            optimizer.zero_grad()


def findings(folder):
    return list(schedule_differs.check(trueline.open_run(folder)))


def decay(optimizer):
    return LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS)


def once(step, scheduler, optimizer):
    scheduler.step()


def once_an_epoch(step, scheduler, optimizer):
    if step % 4 == 3:
        scheduler.step()


def on_plateau(step, scheduler, optimizer):
    scheduler.step(1.0)


def by_hand(step, scheduler, optimizer):
    optimizer.param_groups[0]["lr"] = 0.1 / (step + 2)


def four_times(step, scheduler, optimizer):
    for _ in range(4):
        scheduler.step()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "advance"),
    [
        (decay, once),
        (lambda optimizer: StepLR(optimizer, 1, gamma=0.1), once_an_epoch),
        (lambda optimizer: ReduceLROnPlateau(optimizer, patience=2), on_plateau),
        (lambda optimizer: ChainedScheduler([LinearLR(optimizer), ExponentialLR(optimizer, 0.9)]), once),
        (lambda optimizer: SequentialLR(optimizer, [LinearLR(optimizer), StepLR(optimizer, 2)], [5]), once),
        (lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 4), once),
        (lambda optimizer: LinearLR(optimizer, 1.0, 0.0, total_iters=4 * STEPS), four_times),
        (lambda optimizer: LambdaLR(optimizer, lambda step: 0.0 if step % 4 == 3 else 1.0), once),
    ],
    ids=[
        "decay",
        "once an epoch",
        "plateau",
        "chained",
        "in sequence",
        "restarts",
        "once a rank, made for that",
        "0 now and then",
    ],
)
def test_what_people_do_is_left_alone(tmp_path, make, advance):
    trained(tmp_path / "run", make, advance)
    assert findings(tmp_path / "run") == []


def test_rates_that_the_script_sets_cannot_be_told(tmp_path):
    trained(tmp_path / "run", lambda optimizer: None, by_hand)
    with pytest.raises(CannotTell, match="no scheduler"):
        findings(tmp_path / "run")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "advance", "kinds"),
    [
        (decay, lambda *_: None, ["never-stepped"]),
        (decay, lambda step, scheduler, optimizer: scheduler.step() if step == 7 else None, []),
        (decay, lambda step, scheduler, optimizer: scheduler.step() if step == 0 else None, []),
        (ReduceLROnPlateau, lambda step, scheduler, optimizer: scheduler.step(1.0) if step == 5 else None, []),
    ],
    ids=["never", "once", "once at first", "plateau, once"],
)
def test_a_scheduler_that_is_never_stepped(tmp_path, make, advance, kinds):
    trained(tmp_path / "run", make, advance)
    schedule_findings = findings(tmp_path / "run")
    assert [finding.evidence["kind"] for finding in schedule_findings] == kinds
    assert all((finding.severity, finding.step_last) == ("info", STEPS - 1) for finding in schedule_findings)


@pytest.mark.parametrize(("step_of_old", "kinds"), [(99, ["other-optimizer"]), (9, [])], ids=["never", "begins later"])
def test_a_schedule_of_an_optimizer_that_makes_no_update(tmp_path, step_of_old, kinds):
    """``step_of_old`` is the step from which on the optimizer of the schedule makes updates of its own."""
    old = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    old_scheduler = decay(old)

    def advance(step, scheduler, optimizer):
        old_scheduler.step()
        if step >= step_of_old:
            old.step()

    class NoSchedule:
        """Stands for the scheduler of the optimizer that makes the updates."""

    trained(tmp_path / "run", lambda optimizer: NoSchedule(), advance)
    schedule_findings = findings(tmp_path / "run") if kinds else _findings_or_none(tmp_path / "run")
    assert [finding.evidence["kind"] for finding in schedule_findings] == kinds
    assert not kinds or "LinearLR of SGD, which is stepped, is of an optimizer" in schedule_findings[0].claim


def _findings_or_none(folder):
    """No finding either where no schedule is left to judge."""
    try:
        return findings(folder)
    except CannotTell:
        return []


def test_a_schedule_that_ends_while_training_goes_on(tmp_path):
    trained(tmp_path / "run", decay, four_times)
    (finding,) = findings(tmp_path / "run")
    assert (finding.evidence["kind"], finding.step_first, finding.step_last) == ("ended", 3, STEPS - 1)
    assert "its schedule goes on by 4 an update" in finding.claim


@pytest.mark.parametrize("early", [once, None])
def test_a_scheduler_that_is_stepped_before_the_optimizer(tmp_path, early):
    def never(step, scheduler, optimizer):
        pass

    trained(tmp_path / "run", decay, never if early else once, early=early)
    kinds = [finding.evidence["kind"] for finding in findings(tmp_path / "run")]
    assert kinds == (["stepped-first"] if early else [])


def _writes_over(step, scheduler, optimizer):
    scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.1


def _dampens(step, scheduler, optimizer):
    """A warm-up by hand beside a schedule."""
    scheduler.step()
    optimizer.param_groups[0]["lr"] *= min(1.0, (step + 1) / 8)


@pytest.mark.parametrize(("advance", "kinds"), [(_writes_over, [("written-over", 1)]), (_dampens, [])])
def test_a_rate_that_is_written_over_the_schedule(tmp_path, advance, kinds):
    trained(tmp_path / "run", lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step), advance)
    assert [(finding.evidence["kind"], finding.step_first) for finding in findings(tmp_path / "run")] == kinds


@pytest.mark.in_turn
@pytest.mark.parametrize(("end", "kinds"), [(STEPS, [("began-again", 6)]), (6, [])], ids=["under way", "at its end"])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_schedule_that_is_made_again(tmp_path, end, kinds, keeps):
    """A second stage may follow the end of the first."""
    schedulers = []

    def make(optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.1
            group.pop("initial_lr", None)
        schedulers[: 0 if keeps else 1] = [LambdaLR(optimizer, lambda step: max(0.0, 1 - step / end))]
        return schedulers[0]

    def advance(step, scheduler, optimizer):
        schedulers[0].step()
        if step == 5:
            make(optimizer)

    trained(tmp_path / "run", make, advance)
    assert [(finding.evidence["kind"], finding.step_first) for finding in findings(tmp_path / "run")] == kinds


@pytest.mark.parametrize("loaded", [True, False])
def test_a_schedule_that_begins_anew_where_the_job_starts_again(tmp_path, loaded):
    def exponential(optimizer):
        return LambdaLR(optimizer, lambda step: 0.9**step)

    def goes_on(optimizer):
        scheduler = exponential(optimizer)
        if loaded:
            for _ in range(STEPS):
                scheduler.step()
        return scheduler

    trained(tmp_path / "run", exponential, once)
    trained(tmp_path / "run", goes_on, once, first=STEPS, steps=6, resume=True)
    schedule_findings = findings(tmp_path / "run")
    assert [(finding.evidence["kind"], finding.step_first, finding.step_last) for finding in schedule_findings] == (
        [] if loaded else [("started-again", STEPS, STEPS + 5)]
    )
