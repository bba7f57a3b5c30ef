"""What ended a training is told with the user's own line, whoever raised it."""

import json
from types import SimpleNamespace

import pytest

from trueline.capture.step.description import Description
from trueline.capture.step.exchange import Team
from trueline.capture.step.schedule import ALLOWANCE_S, MAX_INTERVAL, Decision, Schedule
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.files.start import FIRST
from trueline.schema.plan import EARLY_STEPS, Plan
from trueline.tensor.digest import digest_rows


def by_pythons_library():
    json.loads("{")


def by_trueline():
    digest_rows(None)


@pytest.mark.parametrize("raises", [by_pythons_library, by_trueline])
def test_the_line_is_the_users_own(raises):
    sent = []
    safe_sink = SimpleNamespace(describe=lambda manifest, env: sent.append(env))
    team = Team(ranks=(0,), rank=0, group=None)
    facts = {"start": FIRST, "adapter": None, "team": team, "safe_sink": safe_sink}
    description = Description(SimpleNamespace(**facts))
    with pytest.raises(Exception) as caught:  # noqa: PT011
        raises()
    description.note_raised(caught.value)
    assert sent[-1].raised == f"{caught.type.__name__} at test_description.py:{raises.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("cost_s", "step_s", "says"),
    [
        (0.0016, 0.002, "watching takes 1.6 ms of a step on average (80.0% of step time, as steps take 2 ms only)"),
        (0.06, 1.5, "watching takes 60 ms of a step on average (4.0% of step time)"),
    ],
)
def test_what_watching_takes_is_said_in_milliseconds_and_of_short_steps_that_they_are(cost_s, step_s, says):
    """A large share of a toy's step of 2 ms is little time."""
    safe_sink = SimpleNamespace(describe=lambda manifest, env: None)
    start = SimpleNamespace(manifest=Manifest(world_size=1))
    team = Team(ranks=(0,), rank=0, group=None)
    description = Description(SimpleNamespace(start=start, adapter=None, team=team, safe_sink=safe_sink))
    description.note_interval(Decision(MAX_INTERVAL, MAX_INTERVAL, cost_s, step_s), step=9)
    note = f"gradients are sampled every 100 steps since about step 9: the budget asks for fewer; {says}."
    assert description.manifest.notes == [note]


def test_a_floor_that_no_interval_reaches_is_said_as_such():
    safe_sink = SimpleNamespace(describe=lambda manifest, env: None)
    start = SimpleNamespace(manifest=Manifest(world_size=1))
    team = Team(ranks=(0,), rank=0, group=None)
    description = Description(SimpleNamespace(start=start, adapter=None, team=team, safe_sink=safe_sink))
    schedule = Schedule(Plan(budget=0.01))
    schedule.spent(plain_s=0.0029, sampled_s=ALLOWANCE_S, step_s=0.076)
    description.note_interval(schedule.decide(EARLY_STEPS, interval=1), step=EARLY_STEPS)
    assert (
        "no interval keeps the budget, as steps that are not sampled take more; watching"
        in description.manifest.notes[0]
    )
