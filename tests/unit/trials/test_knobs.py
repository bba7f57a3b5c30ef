"""`trial knobs` on jobs that exist in numbers only: what it names, and when it says that it cannot tell."""

import pytest
from tests.simulated_jobs import SimulatedJob, bayes

from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.knobs.catalogue import Switch
from trueline.trials.knobs.knobs import CONTROL_EVERY, PATIENCE, KnobTrial


def tried(tmp_path, shows, size=6, max_runs=300, **more):
    """The trial of a job of which ``shows(arm, off, number)`` tells how a run ends."""
    arms = []

    def engine(way, place):
        arms.append(way.arm)
        return Outcome(shows(way.arm, set(way.changes["off"]), len(arms)), why="it ended with status 1")

    switches = [Switch(f"s{place}", "setting", "") for place in range(size)]
    runs = Runs("knobs", tmp_path / "trial", engine, {}, max_runs)
    trial = KnobTrial(
        runs, "?", lambda: switches, lambda arm, off: Way(arm, changes={"off": [int(each.name[1:]) for each in off]}),
        **more,
    )  # fmt: skip
    return trial.answer(), arms


@pytest.mark.parametrize("size", [1, 2, 8, 16])
@pytest.mark.parametrize("needs", ["one", "both", "either"])
def test_what_is_needed_is_named_as_such(size, needs):
    causes = (size // 3,) if needs == "one" else (0, size - 1)
    if size == 1 and needs != "one":
        return
    job = SimulatedJob(size, causes, needs, 1.0, 0.0, seed=size)
    answer = bayes(job, error=0.05)
    assert (answer.answer, answer.credible) == ("confirmed", (job.right,)), answer.says
    assert answer.exit_code == 0
    assert answer.says[0].startswith("Two faults hide each other") == (needs == "either")
    assert ("together" in answer.says[0]) == (needs == "both")
    assert answer.runs <= 26
    assert answer.rate.showed == answer.rate.runs


def test_a_fault_by_chance_takes_more_runs_and_is_named_too():
    answers = [bayes(SimulatedJob(8, (3,), "one", 0.5, 0.05, seed=seed), error=0.05) for seed in range(6)]
    assert [answer.credible for answer in answers].count(("s3",)) >= 5
    assert min(answer.runs for answer in answers) > 15
    assert all(answer.rate.at_least < 0.75 for answer in answers)


def test_a_fault_that_stays_with_all_off_needs_none_of_them(tmp_path):
    answer, arms = tried(tmp_path, lambda arm, off, number: True)
    assert answer.answer == "excluded"
    assert arms.count("off") >= 2
    assert "s0, s1, s2, s3, s4, s5" in answer.says[0]


def test_one_false_alarm_with_all_off_excludes_nothing(tmp_path):
    seen = []

    def shows(arm, off, number):
        seen.append(arm)
        return seen.count("off") == 1 if len(off) == 6 else 2 not in off

    answer, _ = tried(tmp_path, shows)
    assert (answer.answer, answer.credible) == ("confirmed", ("s2",))


def test_a_fault_that_never_occurs_again_is_undecided(tmp_path):
    answer, arms = tried(tmp_path, lambda arm, off, number: False)
    assert (answer.answer, answer.exit_code) == ("undecided", 3)
    assert arms.count("base") == PATIENCE
    assert "in none of 31 runs" in answer.says[0]


def test_what_the_trial_itself_cures_is_blamed_on_no_switch(tmp_path):
    answer, _ = tried(tmp_path, lambda arm, off, number: arm == "base")
    assert answer.answer == "undecided"
    assert "depends on timing" in answer.says[0]


def test_a_machine_that_drifts_is_noticed(tmp_path):
    """All runs show it until the tenth, and none after: whatever was off then would be blamed."""
    answer, arms = tried(tmp_path, lambda arm, off, number: number <= 10 and len(off) < 6, size=12)
    assert answer.answer == "undecided", answer.says
    assert arms[10:].count("base") >= len(arms[10:]) // CONTROL_EVERY - 1


def test_a_switch_without_which_the_job_does_not_run_stays_on_and_is_named(tmp_path):
    answer, _ = tried(tmp_path, lambda arm, off, number: None if 4 in off else 1 not in off)
    assert (answer.answer, answer.credible) == ("confirmed", ("s1",))
    assert answer.says[-1] == "Left on, as the job does not run without it: s4: it ended with status 1."


def test_a_job_that_does_not_run_a_machine_that_runs_out_and_three_causes_are_undecided(tmp_path):
    fails, arms = tried(tmp_path / "a", lambda arm, off, number: None)
    assert (fails.answer, arms) == ("undecided", ["sham"] * 3)
    few, _ = tried(tmp_path / "b", lambda arm, off, number: 1 not in off, max_runs=4)
    assert few.answer == "undecided"
    assert "All 4 runs" in few.says[0]
    three, _ = tried(tmp_path / "c", lambda arm, off, number: not {0, 2, 4} & off)
    assert three.answer == "undecided", three
