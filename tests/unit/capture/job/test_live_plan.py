"""The Plan while training goes on, without ranks: who reads which file when, and what starts a recording."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace

import pytest
import torch

from trueline.capture.job import live_plan
from trueline.capture.job.live_plan import Live
from trueline.capture.job.triggers import MAX_RECORDINGS, Triggers, nonfinite_in, seen_in_row
from trueline.schema.errors import PlanError
from trueline.schema.files.plan_files import plan_path, revision_path
from trueline.schema.files.start import Start
from trueline.schema.law import LIVE_SIGNS, live_codes
from trueline.schema.plan import LIVE, Plan

NAN = 1.0
"""The bit of the first trigger."""


@pytest.fixture
def clock(monkeypatch):
    """The time that Live sees, in s."""
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(live_plan, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


@pytest.fixture
def team(tmp_path, clock):
    """Two members of a team that share a folder, and what each reports."""
    reports = [[], []]
    members = [
        Live(
            Plan(),
            folder=str(tmp_path),
            rank=rank,
            ranks=(0, 1),
            accepts=lambda plan: None,
            report=reports[rank].append,
        )
        for rank in (0, 1)
    ]
    return members, reports


def test_steps_that_are_asked_for_are_no_part_of_a_ring(tmp_path, clock):
    plan = Plan.load({"preset": "monitor", "ring": 4, "when": ["worker-nonfinite"]})
    alone = Live(plan, folder=str(tmp_path), rank=0, ranks=(0,), accepts=lambda plan: None, report=lambda found: None)
    assert alone.records is not None
    assert (alone.records.ring, alone.records.steps) == (4, (0, None))
    edit(tmp_path, {"preset": "mix", "next_steps": 2})
    clock[0] += 10
    alone.look(7, agrees=True)
    change = alone.due(7)
    assert change is not None
    assert (change.records.ring, change.records.steps, change.records.preset) == (None, (7, 9), "mix")


def edit(folder, content):
    with open(plan_path(str(folder)), "w") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


def look(member, clock, step):
    clock[0] += live_plan.LOOK_S
    member.look(step, agrees=True)


def test_the_plan_file_is_there_from_the_start(team, tmp_path):
    with open(plan_path(str(tmp_path))) as file:
        assert Plan.load(json.load(file)) == Plan()


def test_both_follow_the_content_that_was_announced_though_the_file_changes_again(team, clock, tmp_path):
    (first, second), reports = team
    edit(tmp_path, {"preset": "ops"})
    look(first, clock, 3)
    edit(tmp_path, {"preset": "mix"})
    for member in (first, second):
        member.receive(first.announced, from_step=5)
        assert member.due(4) is None
    look(first, clock, 5)
    for member in (first, second):
        change = member.due(5)
        assert (change.revision, change.plan.preset, change.records.preset) == (1, "ops", "ops")
        member.receive(first.announced, from_step=8)
        assert [member.due(step) for step in (6, 7)] == [None, None]
        assert member.due(8).plan.preset == "mix"
    assert reports == [[], []]


def test_a_revision_that_is_told_again_is_taken_up_once(team, clock, tmp_path):
    (first, _), _ = team
    edit(tmp_path, {"depth": "tensor"})
    look(first, clock, 1)
    taken_up = []
    for step in range(2, 9):
        taken_up.append(first.due(step) is not None)
        first.receive(1, from_step=step + 2)
    assert taken_up == [False, False, True, False, False, False, False]


def test_the_file_is_looked_at_once_a_second_and_by_the_first_rank_only(team, clock, tmp_path, monkeypatch):
    (first, second), _ = team
    looks = []
    for member in (first, second):
        monkeypatch.setattr(member, "_stamp_now", lambda rank=member._rank: looks.append(rank))
    for step in range(1_000):
        clock[0] += 0.01
        first.look(step, agrees=True)
        second.look(step, agrees=True)
    assert set(looks) == {0}
    assert len(looks) in (9, 10), "in 10 s"


def test_a_file_that_is_half_written_is_looked_at_again_before_it_is_refused(team, clock, tmp_path):
    (first, _), reports = team
    edit(tmp_path, '{"preset": "op')
    look(first, clock, 1)
    edit(tmp_path, '{"preset": "ops"}')
    look(first, clock, 2)
    assert (first.announced, reports[0]) == (1, [])
    edit(tmp_path, '{"preset": "op')
    for step in range(3, 9):
        look(first, clock, step)
    assert first.announced == 1
    (finding,) = reports[0]
    assert (finding.code, finding.step_first) == ("plan-refused", 4)


def test_ranks_that_exchange_nothing_any_more_keep_their_plan(team, clock, tmp_path):
    (first, _), reports = team
    edit(tmp_path, {"preset": "mix"})
    for _ in range(2):
        clock[0] += live_plan.LOOK_S
        first.look(1, agrees=False)
    assert first.announced == 0
    assert "no longer exchange sums" in reports[0][0].claim


def test_a_rank_that_cannot_see_the_copy_says_so_and_keeps_its_plan(team, clock, tmp_path):
    (first, second), reports = team
    edit(tmp_path, {"preset": "mix"})
    look(first, clock, 1)
    os.remove(revision_path(str(tmp_path), 1))
    second.receive(1, from_step=3)
    assert second.due(3).plan == Plan()
    assert "revision 1 of the Plan cannot be read on rank 1" in reports[1][0].claim


def test_a_rank_that_does_not_record_follows_the_plan_without_recording(team, clock, tmp_path):
    (first, second), _ = team
    edit(tmp_path, {"preset": "mix", "ranks": [1]})
    look(first, clock, 1)
    for member in (first, second):
        member.receive(1, from_step=3)
    assert (first.due(3).records, second.due(3).records.preset) == (None, "mix")


def test_without_a_folder_nothing_is_read_or_written(clock):
    alone = Live(Plan(), folder=None, rank=0, ranks=(0,), accepts=lambda plan: None, report=pytest.fail)
    look(alone, clock, 1)
    assert alone.due(1) is None


def test_only_keys_that_leave_what_is_exchanged_alone_can_change():
    shaping = {"params_every", "matrix_every", "exact", "budget", "dataset_size", "rng", "max_groups"}
    others = {"false_alarms", "worker_groups", "local_updates", "sinks", "on_finding", "most_skips", "fail_on_error"}
    assert set(Plan.model_fields) - set(LIVE) == shaping | others
    for key in shaping:
        value = {"exact": True, "rng": "equal", "budget": 0.5}.get(key, 7)
        with pytest.raises(PlanError, match=f"Key '{key}' .*cannot change while a job runs"):
            Plan(preset="mix").revised({key: value}, "a test")


# -- what starts a recording ---------------------------------------------------------------------------------------


def starts(told, **plan):
    """Steps at which a recording starts, when ``told[step]`` are the bits of two workers, known two steps later."""
    triggers = Triggers()
    begun = []
    when = plan.get("when", list(live_codes().values()))
    for step in range(40):
        if triggers.start(step, when=when, num_steps=plan.get("num_steps", 3)) is not None:
            begun.append(step)
        triggers.receive(told.get(step, (0.0, 0.0)), step=step, from_step=step + 2)
    return begun


def test_what_stays_starts_one_recording_and_what_comes_back_another():
    assert starts(dict.fromkeys(range(5, 40), (0.0, NAN))) == [7]
    assert starts({5: (0.0, NAN), 6: (0.0, NAN), 12: (NAN, 0.0)}) == [7, 14]


def test_nothing_starts_while_a_recording_is_under_way():
    assert starts({5: (0.0, NAN), 7: (NAN, 0.0), 9: (NAN, 0.0)}, num_steps=4) == [7, 11]


def test_a_job_starts_three_recordings_at_most():
    assert len(starts(dict.fromkeys(range(0, 40, 5), (NAN, 0.0)))) == MAX_RECORDINGS == 3


def test_findings_that_the_plan_does_not_name_start_nothing():
    assert starts({5: (0.0, NAN)}, when=list(live_codes().values())[1:]) == []


def test_every_sign_has_a_code_and_a_bit_of_its_own_and_is_told_once():
    triggers = Triggers()
    told = []
    assert tuple(live_codes()) == LIVE_SIGNS
    for sign in LIVE_SIGNS:
        triggers.add({sign})
        told.append(triggers.take_bits())
    assert told == [1.0, 2.0, 4.0, 8.0]
    assert triggers.take_bits() == 0.0


def test_a_gradient_that_jumps_is_told_and_parameters_without_one_do_not_count():
    triggers = Triggers()
    for norm in [1.0] * 40 + [2.4, 6.0, 100.0]:
        triggers.look({"local_norm2": torch.tensor([norm**2, -1.0, -1.0])}, scaled=False)
        told = triggers.take_bits()
        assert told == (8.0 if norm > 2.5 * 2.4 else 0.0)


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        ({}, set()),
        ({"group_reduce_residual": [0.1, None], "group_reduce_floor": [0.2, 0.2]}, set()),
        ({"group_reduce_residual": [0.1, 0.3], "group_reduce_floor": [0.2, 0.2]}, {"mismatch"}),
        (
            {"group_used_residual": [0.3], "group_used_floor": [0.2], "group_used_local": [0.0]},
            {"unreduced"},
        ),
        ({"group_used_residual": [0.3], "group_used_floor": [0.2], "group_used_local": [0.9]}, {"mismatch"}),
        ({"group_used_residual": [0.1], "group_used_floor": [0.2], "group_used_local": [0.0]}, set()),
    ],
)
def test_reduction_columns_are_held_to_their_own_floors(columns, codes):
    assert seen_in_row(columns, lossy=False, by_hand=False) == codes


def test_a_lossy_hook_is_judged_by_what_replicas_use_only():
    columns = {"group_reduce_residual": [0.3], "group_reduce_floor": [0.2]}
    assert seen_in_row(columns, lossy=True, by_hand=False) == set()
    assert seen_in_row(columns, lossy=False, by_hand=True) == set()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_or_a_gradient_that_is_not_finite_is_seen(bad):
    norm2 = torch.tensor([1.0, bad], dtype=torch.float64)
    loss = torch.tensor(bad, dtype=torch.float64)
    assert nonfinite_in({"loss": loss}, scaled=True) == {"nonfinite"}
    assert nonfinite_in({"local_norm2": norm2}, scaled=False) == {"nonfinite"}
    assert nonfinite_in({"local_norm2": norm2}, scaled=True) == set(), "a gradient scaler looks for its scale"
    assert nonfinite_in({"loss": torch.tensor(1.0), "local_norm2": torch.tensor([-1.0, 4.0])}, scaled=False) == set()
    assert nonfinite_in({}, scaled=False) == set()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_job_that_goes_on_keeps_what_was_asked_for_while_it_ran(clock, tmp_path, keeps):
    """The changes made before are not counted again, and their copies stay as they are."""
    copy = revision_path(str(tmp_path), 2)
    os.makedirs(os.path.dirname(copy))
    for path, content in ((plan_path(str(tmp_path)), {"preset": "mix"}), (copy, {"preset": "ops"})):
        with open(path, "w") as file:
            json.dump(content, file)
    start = Start(attempt=1, step=7, revision=2, keeps_plan=keeps)
    facts = {"folder": str(tmp_path), "rank": 0, "ranks": (0,), "accepts": lambda plan: None, "report": pytest.fail}
    member = Live(Plan(), **facts, start=start)
    assert member.due(7) is None
    look(member, clock, 8)
    change = member.due(8)
    if keeps:
        assert (change.revision, change.plan.preset) == (3, "mix")
    else:
        assert change is None
        with open(plan_path(str(tmp_path))) as file:
            assert Plan.load(json.load(file)) == Plan()
    with open(copy) as file:
        assert json.load(file) == {"preset": "ops"}
