"""Starts of a job that take over other weights or states than those that were left."""

import json

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import PARAMS, write_run, write_starts
from torch import nn

import trueline
from trueline.laws.restarts import facts, restart_rate, restart_states, restart_weights
from trueline.laws.restarts.sampled_states import sampled_states
from trueline.laws.restarts.taken_over import taken_over
from trueline.schema.errors import CannotTell

STEPS = 4
STATES = {name: f"{number:016x}" for number, name in enumerate(PARAMS, 1)}


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def updates(folder, model, optimizer, *, first=0):
    draws = torch.Generator().manual_seed(first)
    with trueline.watch(model, optimizer, out=folder, step=first or None, resume=first > 0):
        for _ in range(STEPS):
            model(torch.randn(8, 4, generator=draws)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def adam(model, *, reverse=False):
    params = list(model.parameters())
    return torch.optim.AdamW(params[::-1] if reverse else params, lr=0.01)


def restarted(folder, make, load):
    """A job of two starts, the second of a new model and ``make``'s optimizer into which ``load`` loads."""
    model, optimizer = layers(), adam(layers())
    optimizer = adam(model)
    updates(folder, model, optimizer)
    later = layers()
    later_optimizer = make(later)
    load(later, later_optimizer, model.state_dict(), optimizer.state_dict())
    updates(folder, later, later_optimizer, first=STEPS)
    return trueline.open_run(folder)


def load_all(model, optimizer, weights, states):
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)


def kinds(run):
    found = [*restart_weights.check(run), *restart_states.check(run)]
    return [(finding.code, finding.evidence["kind"], finding.severity) for finding in found]


def test_a_start_that_takes_everything_over_is_left_alone(tmp_path):
    assert kinds(restarted(tmp_path / "run", adam, load_all)) == []


def test_weights_that_are_not_loaded(tmp_path):
    def load(model, optimizer, weights, states):
        optimizer.load_state_dict(states)

    run = restarted(tmp_path / "run", adam, load)
    assert kinds(run) == [("restart-weights", "begun-anew", "warning")]
    assert restart_weights.check(run)[0].claim == (
        "The job was started again at step 4, and all 6 parameters on rank 0 are as the job first began with, and not "
        "as the start before had left them at step 3."
    )


def test_one_part_of_the_weights_that_is_another(tmp_path):
    def load(model, optimizer, weights, states):
        load_all(model, optimizer, {**weights, "2.bias": torch.ones(4)}, states)

    run = restarted(tmp_path / "run", adam, load)
    assert kinds(run) == [("restart-weights", "other", "confirm")]
    assert "of 6 parameters 2.bias on rank 0 is not as" in restart_weights.check(run)[0].claim


def test_an_optimizer_that_is_not_loaded(tmp_path):
    run = restarted(tmp_path / "run", adam, lambda model, optimizer, weights, states: model.load_state_dict(weights))
    assert kinds(run) == [("restart-states", "gone", "confirm")]
    assert "holds no states of all 6 parameters any more" in restart_states.check(run)[0].claim


def test_states_of_copies_that_a_framework_updates(tmp_path):
    def with_a_copy(model):
        copy = torch.ones(3, requires_grad=True)
        copy.grad = torch.ones(3)
        return torch.optim.AdamW([*model.parameters(), copy], lr=0.01)

    folder, model = tmp_path / "run", layers()
    optimizer = with_a_copy(model)
    updates(folder, model, optimizer)
    later = layers()
    later_optimizer = with_a_copy(later)
    load_all(later, later_optimizer, model.state_dict(), optimizer.state_dict())
    del later_optimizer.state[later_optimizer.param_groups[0]["params"][6]]
    updates(folder, later, later_optimizer, first=STEPS)
    (finding,) = restart_states.check(trueline.open_run(folder))
    assert (finding.evidence["kind"], finding.evidence["names"]) == ("gone", ["parameter 6 of group 0"])


def test_states_of_parameters_in_another_order(tmp_path):
    def load(model, optimizer, weights, states):
        order = [4, 1, 2, 3, 0, 5]  # weights change places with weights: shapes agree
        moved = {place: states["state"][order[place]] for place in order}
        load_all(model, optimizer, weights, {**states, "state": moved})

    run = restarted(tmp_path / "run", adam, load)
    assert kinds(run) == [("restart-states", "moved", "error")]
    (finding,) = restart_states.check(run)
    assert finding.evidence["moves"] == {"0.weight": "4.weight", "4.weight": "0.weight"}


def test_states_that_are_rounded_on_their_way(tmp_path):
    def load(model, optimizer, weights, states):
        load_all(model, optimizer, weights, states)
        for state in optimizer.state.values():
            state["exp_avg"].copy_(state["exp_avg"].bfloat16())

    assert kinds(restarted(tmp_path / "run", adam, load)) == [("restart-states", "other", "confirm")]


def test_an_optimizer_without_states_cannot_be_told(tmp_path):
    def plain(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    model = layers()
    updates(tmp_path / "run", model, plain(model))
    updates(tmp_path / "run", model, plain(model), first=STEPS)
    run = trueline.open_run(tmp_path / "run")
    assert restart_weights.check(run) == []
    with pytest.raises(CannotTell, match="no states"):
        restart_states.check(run)


def starts_of(*, again=4, taken=STATES, weights=1, states_left=STATES):
    """Two starts of one rank, the first of four steps, the second from ``again`` on."""
    digests = np.full(len(PARAMS), 1, dtype=np.uint64)
    first = {(step, 0): {"param_digests": np.full(len(PARAMS), 9 - step, dtype=np.uint64)} for step in range(4)}
    first[3, 0] |= {"closing_digests": digests, "closing_states": json.dumps({"exp_avg": states_left})}
    opening = {"param_digests": digests * weights, "opening_states": json.dumps({"exp_avg": taken})}
    return [(0, first), (again, {(again, 0): opening})]


def of_steps(digests, *, first=0, **columns):
    """Rows from step ``first`` on that begin with weights that are all of one of ``digests``."""
    rows = {
        (first + place, 0): {"param_digests": np.full(len(PARAMS), d, np.uint64)} for place, d in enumerate(digests)
    }
    for row in rows.values():
        row |= columns
    return rows


def killed(folder, opening, *, first=4, updates=None):
    """A job that was killed in its step 4 or after, and its next start."""
    run = write_starts(folder, [(0, of_steps([5, 6, 7, 8])), (first, of_steps(opening, first=first))])
    for attempt in run.manifest.attempts[1:]:
        attempt.updates = updates
    return run


def claims(run):
    return [finding.claim for finding in restart_weights.check(run)]


def test_after_a_kill_weights_of_the_beginning_alone_are_told(tmp_path):
    assert claims(killed(tmp_path / "anew", [5])) == [
        "The job was started again at step 4, and all 4 parameters on rank 0 are as the job first began with, and not "
        "as the start before had them when it was killed."
    ]
    # a checkpoint of step 2, or of one that nobody looked at
    for name, opening in {"older": [7], "unknown": [9]}.items():
        assert claims(killed(tmp_path / name, opening)) == []


def test_steps_that_are_repeated_begin_with_the_same_weights(tmp_path):
    assert claims(killed(tmp_path / "same", [7, 8], first=2, updates=2)) == []
    assert (
        "are as before step 3, and not as the start before had them at step 2"
        in (claims(killed(tmp_path / "later", [8, 8], first=2, updates=2))[0])
    )
    assert (
        "are not as the start before had them at step 2"
        in (claims(killed(tmp_path / "other", [9, 9], first=2, updates=2))[0])
    )
    # the optimizer was not loaded, and with it the count of updates: the weights say where the start goes on from
    (start,) = taken_over(killed(tmp_path / "uncounted", [8, 8], first=0))
    assert (start.at, start.repeats, start.other_weights) == (3, True, [])


@pytest.mark.parametrize("is_loaded", [True, False])
def test_states_after_a_kill(tmp_path, is_loaded):
    model = layers()
    optimizer = adam(model)
    updates(tmp_path / "run", model, optimizer)
    later = layers()
    later.load_state_dict(model.state_dict())
    later_optimizer = adam(later)
    if is_loaded:
        later_optimizer.load_state_dict(optimizer.state_dict())
    updates(tmp_path / "run", later, later_optimizer, first=STEPS)
    run = trueline.open_run(tmp_path / "run")
    before = run.left_before(STEPS)
    assert before.steps.tolist() == list(range(STEPS))
    states = sampled_states(run, before, STEPS, 0, at=STEPS)
    assert bool(states.gone) is not is_loaded


def test_a_run_as_the_start_before_left_it_has_the_steps_that_were_repeated(tmp_path):
    run = killed(tmp_path / "run", [1, 2, 3], first=2)
    before = run.left_before(2)
    assert [int(row[0]) for _, row in sorted(before.lists("param_digests").items())] == [5, 6, 7, 8]
    assert [int(row[0]) for _, row in sorted(run.lists("param_digests").items())] == [5, 6, 1, 2, 3]


def test_a_job_of_one_start_cannot_be_told(tmp_path):
    with pytest.raises(CannotTell, match="was started once"):
        restart_weights.check(write_run(tmp_path / "run", {(0, 0): {}}))


def test_states_that_several_parameters_have_did_not_move(tmp_path):
    alike = dict.fromkeys(STATES, "0" * 16)
    changed = {**STATES, "head": "0" * 16}
    run = write_starts(tmp_path / "run", starts_of(states_left={**alike, "head": "7" * 16}, taken=changed))
    assert restart_states.check(run)[0].evidence["kind"] == "other"


def test_states_beside_other_weights_are_those_of_another_checkpoint(tmp_path):
    other = {name: f"{number:016x}" for number, name in enumerate(PARAMS, 50)}
    run = write_starts(tmp_path / "run", starts_of(taken=other, weights=2))
    assert kinds(run) == [("restart-weights", "other", "confirm")]
    moved = write_starts(tmp_path / "moved", starts_of(taken={**STATES, "head": STATES["embed"]}, weights=2))
    assert kinds(moved)[1] == ("restart-states", "moved", "error")


def with_rates(starts, *rates):
    for (_, rows), rate in zip(starts, rates, strict=True):
        for row in rows.values():
            row["lr"] = [rate]
    return starts


def test_the_fact_of_what_was_taken_over(tmp_path):
    text, _ = facts.takeovers(write_starts(tmp_path / "all", with_rates(starts_of(), 0.1, 0.1)))
    assert text == "1 start that went on: at step 4 weights, optimizer states and learning rates as they were left"
    changed = with_rates(starts_of(taken={}), 0.1, 0.2)
    text, numbers = facts.takeovers(write_starts(tmp_path / "some", changed))
    assert (
        text == "1 start that went on: at step 4 weights as they were left, other optimizer states and learning rates"
    )
    assert numbers == [{"step": 4, "weights": True, "optimizer_states": False, "learning_rates": False}]
    assert facts.takeovers(write_run(tmp_path / "once", {(0, 0): {}})) is None


def rates_run(folder, before, after, *, command=(), epochs=((), ())):
    """A Run of two starts with the rate of each update, and where the schedule was, if it had one."""
    num = len(before)
    starts = starts_of()
    first, second = {(step, 0): {} for step in range(num)}, {(num + step, 0): {} for step in range(len(after))}
    first[0, 0] |= starts[0][1][0, 0]
    first[num - 1, 0] |= starts[0][1][3, 0]
    second[num, 0] |= starts[1][1][4, 0]
    for rows, rates, places in ((first, before, epochs[0]), (second, after, epochs[1])):
        for row, rate in zip(rows.values(), rates, strict=True):
            row["lr"] = [rate]
        for row, place in zip(rows.values(), places, strict=False):
            row["schedule_epochs"] = [place]
    return write_starts(folder, [(0, first), (num, second)], command=list(command))


def told(run):
    return [finding.claim for finding in restart_rate.check(run)]


@pytest.mark.parametrize(("after", "now"), [(0.1, "0.1"), (0.2, "0.2")])
def test_a_rate_that_goes_back_or_up(tmp_path, after, now):
    assert told(rates_run(tmp_path / "run", [0.1, 0.09, 0.08, 0.07], [after, 0.06])) == [
        f"At the restart at step 4 the learning rate on rank 0 is {now}, and it was 0.07 at step 3, the last update "
        "before."
    ]


def test_rates_that_go_on_or_are_meant(tmp_path):
    linear = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
    assert told(rates_run(tmp_path / "linear", linear[:4], linear[4:])) == []
    # rounding makes the distance at the start the largest one
    assert told(rates_run(tmp_path / "rounded", linear[:4], [np.nextafter(0.06, 0), 0.05])) == []
    assert told(rates_run(tmp_path / "epochs", [0.1] * 4, [0.01] * 4)) == []
    asked = ["job.py", "--lr", "0.2"]
    assert told(rates_run(tmp_path / "asked", [0.1] * 4, [0.2] * 4, command=asked)) == []
    assert len(told(rates_run(tmp_path / "other", [0.1] * 4, [0.3] * 4, command=asked))) == 1


def test_a_schedule_that_goes_back_is_told_by_its_own_law(tmp_path):
    before, after = [0.1, 0.09, 0.08, 0.07], [0.1, 0.09]
    assert told(rates_run(tmp_path / "back", before, after, epochs=((0, 1, 2, 3), (0, 1)))) == []
    assert len(told(rates_run(tmp_path / "on", before, after, epochs=((0, 1, 2, 3), (4, 5))))) == 1


@pytest.mark.parametrize(("states", "again"), [([11, 12, 13], True), ([11, 12, 14], False)])
def test_random_numbers_that_begin_again(tmp_path, states, again):
    first = of_steps([5, 6, 7, 8])
    for (step, _), row in first.items():
        row["rng_drawn"] = [11 + step, 0, 0, 0]
    second = of_steps([9, 10, 11], first=4)
    for row, state in zip(second.values(), states, strict=True):
        row["rng_drawn"] = [state, 0, 0, 0]
    text, numbers = facts.streams(write_starts(tmp_path / "run", [(0, first), (4, second)]))
    assert numbers == [{"step": 4, "stream": "torch on the host", "again": again}]
    assert ("steps 4-6 draw from the states of steps 0-2" in text) is again
    assert facts.streams(write_starts(tmp_path / "none", starts_of())) is None
