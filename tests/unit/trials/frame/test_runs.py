"""The runs of a trial: what is kept of them, and how a trial goes on that was killed."""

import json
import threading

import pytest

from trueline.schema.errors import InputError
from trueline.trials.frame.chance import Counts
from trueline.trials.frame.runs import FILE, JobFails, OutOfRuns, Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import TrialAnswer


class Scripted:
    """An engine whose outcomes are given; it leaves a file."""

    def __init__(self, *outcomes):
        self.outcomes, self.asked = list(outcomes), []

    def __call__(self, way, place):
        self.asked.append(way.arm)
        (place / "left").write_text(way.arm)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Outcome(outcome, "" if outcome is not None else "it ended with status 1")


def runs_of(folder, engine, max_runs=10, asked=None, **more):
    return Runs("knobs", folder, engine, asked or {"seed": 0}, max_runs, **more)


def test_a_trial_that_was_killed_goes_on_where_it_was(tmp_path):
    engine = Scripted(True, False, KeyboardInterrupt())
    before = runs_of(tmp_path / "t", engine)
    assert [before.outcome(Way(arm)) for arm in ("base", "off")] == [True, False]
    with pytest.raises(KeyboardInterrupt):
        before.outcome(Way("base"))
    assert (tmp_path / "t" / "002-base" / "left").exists()

    engine = Scripted(True)
    after = runs_of(tmp_path / "t", engine)
    assert [after.outcome(Way(arm)) for arm in ("base", "off", "base")] == [True, False, True]
    assert engine.asked == ["base"], "two outcomes were on disk"
    assert after.counts("base") == Counts(2, 2)
    assert [(arm.name, arm.runs, arm.showed) for arm in after.arms] == [("base", 2, 2), ("off", 1, 0)]
    after.end(TrialAnswer("knobs", "?", "confirmed", (), after.arms))
    text = (tmp_path / "t" / FILE).read_text()
    written = json.loads(text)
    assert text == json.dumps(written, indent=1), "though entries of the log are put into words one by one"
    assert (written["answer"], written["runs"], len(written["log"])) == ("confirmed", 3, 3)


def test_another_trial_and_another_folder_are_left_alone(tmp_path):
    runs_of(tmp_path / "t", Scripted(True)).outcome(Way("base"))
    with pytest.raises(InputError, match="asked something else"):
        runs_of(tmp_path / "t", Scripted(), asked={"seed": 1}).outcome(Way("base"))
    with pytest.raises(InputError, match="would run 'off'"):
        runs_of(tmp_path / "t", Scripted()).outcome(Way("off"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="no trial"):
        runs_of(tmp_path / "mine", Scripted()).outcome(Way("base"))
    (tmp_path / "t" / FILE).write_text("{")
    with pytest.raises(InputError, match="cannot be read as a trial"):
        runs_of(tmp_path / "t", Scripted()).outcome(Way("base"))


def test_of_runs_alike_one_is_kept(tmp_path):
    def left(**more):
        folder = tmp_path / str(len(more))
        runs = runs_of(folder, Scripted(True, True, False, True, True), **more)
        for arm in ("base", "base", "base", "off: a", "off: b"):
            runs.outcome(Way(arm))
        return sorted(path.name for path in folder.iterdir() if path.is_dir())

    assert left() == ["000-base", "002-base", "003-off--a"]
    assert len(left(keeps_all=True)) == 5


def test_a_job_that_never_tells_anything_and_one_without_end_are_stopped(tmp_path):
    runs = runs_of(tmp_path / "a", Scripted(None, None, None))
    assert [runs.outcome(Way("base")) for _ in range(2)] == [None, None]
    with pytest.raises(JobFails, match="ended with status 1") as fails:
        runs.outcome(Way("base"))
    assert runs.counts("base") == Counts()
    assert fails.value.arm == "base"
    assert fails.value.then[0].startswith("See what it prints by itself")

    few = runs_of(tmp_path / "b", Scripted(True, True), max_runs=1)
    few.outcome(Way("base"))
    with pytest.raises(OutOfRuns):
        few.outcome(Way("base"))
    more = runs_of(tmp_path / "b", Scripted(True), max_runs=2)
    assert [more.outcome(Way("base")) for _ in range(2)] == [True, True], "more runs go on with what there is"


def test_the_commands_of_an_answer_can_be_run_as_they_are(tmp_path):
    answer = TrialAnswer("knobs", "?", "excluded", (), (), next=("Look: trueline trial precheck RUN",))
    ended = runs_of(tmp_path / "t", Scripted(), about="runs/my job").end(answer)
    assert ended.next == ("Look: trueline trial precheck 'runs/my job'",)
    failing = runs_of(tmp_path / "f", Scripted(None, None, None), asked={"command": ["python", "my job.py"]})
    with pytest.raises(JobFails) as fails:
        [failing.outcome(Way("good")) for _ in range(3)]
    assert fails.value.then == ("See what it prints by itself: python 'my job.py'.",)


class Together:
    """Two runs that wait for each other; ``job`` ends those that wait for ever."""

    def __init__(self):
        self.barrier, self.ended, self.job = threading.Barrier(2, timeout=30), threading.Event(), self

    def __call__(self, way, place):
        if way.arm == "stops":
            raise KeyboardInterrupt
        if way.arm == "waits":
            assert self.ended.wait(30)
            return Outcome(None, "it was ended")
        self.barrier.wait()
        return Outcome(way.arm == "bad")

    def end(self):
        self.ended.set()


def test_runs_at_once_count_in_their_order_and_go_on_like_others(tmp_path):
    ways = [Way(arm) for arm in ("bad", "good", "good", "bad")]
    assert runs_of(tmp_path / "t", Together()).outcomes(ways, at_once=2) == [True, False, False, True]
    again = runs_of(tmp_path / "t", Scripted())
    assert again.outcomes(ways, at_once=2) == [True, False, False, True]
    assert [entry["place"] for entry in again.log] == ["000-bad", "001-good", "", ""], "of runs alike the first is kept"


def test_what_interrupts_one_of_them_ends_the_others(tmp_path):
    runner = Together()
    runs = runs_of(tmp_path / "t", runner)
    with pytest.raises(KeyboardInterrupt):
        runs.outcomes([Way("stops"), Way("waits")], at_once=2)
    assert runner.ended.is_set()
    assert runs.log == []


def test_no_more_run_at_once_than_are_allowed(tmp_path):
    runs = runs_of(tmp_path / "t", Together(), max_runs=2)
    with pytest.raises(OutOfRuns):
        runs.outcomes([Way("bad"), Way("good"), Way("good")], at_once=3)
    assert len(runs.log) == 2
