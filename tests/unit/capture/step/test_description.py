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
    ("interval", "by_budget", "says"),
    [
        (MAX_INTERVAL, MAX_INTERVAL, "every 100 steps since about step 9: the budget of time asks for fewer."),
        (
            4,
            46,
            "every 4 steps since about step 9: checks need as many in the first 300 steps, then the budget of time "
            "asks for every 46.",
        ),
    ],
)
def test_the_interval_is_noted_with_its_reason_and_not_with_a_cost_that_is_foretold(interval, by_budget, says):
    """What watching costs is measured, and said once."""
    safe_sink = SimpleNamespace(describe=lambda manifest, env: None)
    start = SimpleNamespace(manifest=Manifest(world_size=1))
    team = Team(ranks=(0,), rank=0, group=None)
    description = Description(SimpleNamespace(start=start, adapter=None, team=team, safe_sink=safe_sink))
    description.note_interval(Decision(interval, by_budget), step=9)
    assert description.manifest.notes == [f"gradients are sampled {says}"]


def test_a_floor_that_no_interval_reaches_is_said_as_such():
    safe_sink = SimpleNamespace(describe=lambda manifest, env: None)
    start = SimpleNamespace(manifest=Manifest(world_size=1))
    team = Team(ranks=(0,), rank=0, group=None)
    description = Description(SimpleNamespace(start=start, adapter=None, team=team, safe_sink=safe_sink))
    schedule = Schedule(Plan(budget=0.01))
    schedule.spent(plain_s=0.0029, sampled_s=ALLOWANCE_S, step_s=0.076)
    description.note_interval(schedule.decide(EARLY_STEPS, interval=1), step=EARLY_STEPS)
    assert description.manifest.notes[0].endswith("keeps the budget of time, as steps that are not sampled take more.")
