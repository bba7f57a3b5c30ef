"""optimizer-state-stale: an optimizer of one's own whose count of steps does not go on."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.trained_updates import adamw, trained

from trueline.laws.optimizer import optimizer_state_stale
from trueline.laws.optimizer.staying_counts import FEWEST


class OwnAdam(torch.optim.Optimizer):
    """Adam by hand; ``counts(state, group)`` gives the count of an update, and keeps it or does not."""

    def __init__(self, params, counts, moves=lambda number: True, **settings):
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.95), **settings})
        self.counts, self.moves, self.number = counts, moves, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.number += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                state.setdefault("m", torch.zeros_like(param)).lerp_(param.grad, 1 - b1)
                state.setdefault("v", torch.zeros_like(param)).lerp_(param.grad.square(), 1 - b2)
                count = self.counts(state, group)
                if self.moves(self.number):
                    root = (state["v"] / (1 - b2**count)).sqrt() + 1e-8
                    param.sub_(group["lr"] * state["m"] / (1 - b1**count) / root)
            if "k" in group:
                group["k"] += 1


def not_written_back(state, group):
    return state.setdefault("step", torch.zeros(())) + 1


def a_number_not_written_back(state, group):
    return state.setdefault("t", 0) + 1


def begun_anew(state, group):
    state["step"] = 0
    state["step"] += 1
    return state["step"]


def of_the_group(state, group):
    return group["step"] + 1


def told(run):
    findings, _ = asked(run, optimizer_state_stale.CODE)
    return findings


@pytest.mark.parametrize(
    ("counts", "settings", "count"),
    [
        (not_written_back, {}, 0),
        (a_number_not_written_back, {}, 0),
        (begun_anew, {}, 1),
        (of_the_group, {"step": 0}, 0),
    ],
)
def test_a_count_that_stays_is_to_be_confirmed(tmp_path, counts, settings, count):
    trained(tmp_path / "run", lambda model: OwnAdam(model.parameters(), counts, **settings))
    (finding,) = told(tmp_path / "run")
    assert (finding.severity, finding.evidence["kind"], finding.measured) == ("confirm", "count-stays", count)
    assert finding.claim == (
        f"The count of steps in the state of OwnAdam stays at {count} from step 0 to 11: bias correction by it is that "
        "of the first update each time, and makes later ones 2.24 times as large."
    )


def written_back(state, group):
    state.setdefault("step", torch.zeros(())).add_(1)
    return state["step"]


def written_back_as_a_number(state, group):
    state["t"] = state.get("t", 0) + 1
    return state["t"]


def counted_by_the_group(state, group):
    """As in Prodigy, whose states have a step that nobody uses."""
    state["step"] = 0
    return group["k"] + 1


def far_on(state, group):
    return state.setdefault("step", 5000)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "settings",
    [
        {"make": lambda model: OwnAdam(model.parameters(), written_back)},
        {"make": lambda model: OwnAdam(model.parameters(), written_back_as_a_number)},
        {"make": lambda model: OwnAdam(model.parameters(), counted_by_the_group, k=0)},
        {"make": lambda model: OwnAdam(model.parameters(), far_on)},
        {"make": lambda model: OwnAdam(model.parameters(), not_written_back, moves=lambda number: number < FEWEST)},
        {"make": lambda model: OwnAdam(model.parameters(), not_written_back), "steps": FEWEST - 1},
        {"make": lambda model: OwnAdam(model.parameters(), lambda state, group: 100)},
        {"make": adamw},
    ],
)
def test_counts_that_go_on_or_do_not_matter_are_left_alone(tmp_path, settings):
    trained(tmp_path / "run", **settings)
    assert told(tmp_path / "run") == []


def test_looking_at_a_count_changes_nothing(tmp_path):
    weights = [
        trained(out, lambda model: OwnAdam(model.parameters(), written_back)) for out in (None, tmp_path / "run")
    ]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
