"""`trial drill` on Runs that exist in numbers only."""

import json

import pytest
from tests.synthetic_runs import write_run

from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.trials.drill.drill import DrilledJob, DrillTrial, prepare
from trueline.trials.drill.faults import FAULTS
from trueline.trials.drill.forecast import steps_until_seen
from trueline.trials.frame.asked import Asked
from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Job

AT, STEPS, RANKS = 10, 60, 4
OF = {fault.name: fault for fault in FAULTS}


def changed(row, column, rank, *, factor=1.0, by=0.0, since=AT, bad=1):
    if rank == bad and row["step"] >= since and row.get(column) is not None:
        row[column] = row[column] * factor + by


class Drilled:
    """A job that leaves a made-up Run, other in the arms that ``changes`` names, and what its faults ``touched``."""

    job = Job(("train",), 60.0)

    rank = None

    def __init__(self, changes=None, *, touched=1, ranks=RANKS, fails=()):
        self.changes, self.touched, self.ranks, self.fails = changes or {}, touched, ranks, fails

    def __call__(self, way, run_folder):
        if way.arm in self.fails:
            return Outcome(None, "it ended with status 1")
        change = self.changes.get(way.arm) or self.changes.get("all")
        write_run(run_folder / "run", num_ranks=self.ranks, num_steps=STEPS, change=change)
        (run_folder / "planted").mkdir()
        fault = {"rank": 1, "world": self.ranks, "touched": self.touched, "step": AT, "what": ""}
        for rank in range(self.ranks):
            untouched = {} if rank == 1 else {"rank": rank, "touched": 0, "step": -1}
            (run_folder / "planted" / f"planted-{rank}.json").write_text(json.dumps(fault | untouched))
        return Outcome(False, codes=(str(run_folder),))


def drilled(folder, *names, job=None, **facts):
    faults = [OF[name] for name in names]
    engine = job or Drilled(**facts)
    runs = Runs("drill", folder / "t", engine, {}, keeps_all=True)
    engine.at, engine.steps = AT, STEPS
    return DrillTrial(runs, engine, faults, "more").answer()


def by_rank_1(step, rank, row):
    changed(row, "loss", rank, by=1.0)


def test_what_is_seen_is_said_with_its_rank_and_the_number_of_steps(tmp_path):
    answer = drilled(tmp_path, "loss-1.5", "rate", changes={"loss-1.5": by_rank_1})
    seen, unseen = answer.table
    assert answer.answer == "confirmed"
    assert answer.says[0].startswith("Of 2 faults this job would show 1 within 50 steps; 1 it would not; 0 cannot")
    assert (seen["by"], seen["rank"], seen["names_rank"]) == ("worker-loss-outlier", "rank 1", True), seen
    after = seen["state"]["after"]
    assert 1 < after < 30
    assert seen["seen"] == f"after {after} steps"
    assert unseen["seen"] == "not in 50 steps"
    assert unseen["otherwise"].startswith("trueline diff")
    assert answer.next == ("more",)


def test_the_number_of_steps_is_the_least_of_which_check_says_it(tmp_path):
    answer = drilled(tmp_path, "loss-1.5", changes={"loss-1.5": by_rank_1})
    from tests.unit.asked import asked

    (row,) = answer.table
    run = Run(tmp_path / "t" / "002-loss-1-5" / "run")
    assert asked(run.before(AT + row["state"]["after"]), "worker-loss-outlier")[0]
    assert not asked(run.before(AT + row["state"]["after"] - 1), "worker-loss-outlier")[0]


def test_a_fault_that_touched_nothing_was_not_planted(tmp_path):
    answer = drilled(tmp_path, "schedule", touched=0)
    (row,) = answer.table
    assert (row["seen"], row["state"]["is"]) == ("not planted", "not planted")
    assert row["otherwise"].startswith("it needs a schedule of torch")
    assert "1 cannot be planted in it" in answer.says[0]


def test_a_drill_that_planted_nothing_is_undecided(tmp_path):
    answer = drilled(tmp_path, "schedule", "nan", fails=("nan",), touched=0)
    assert (answer.answer, answer.exit_code, len(answer.table)) == ("undecided", 3, 2)


def test_of_one_process_nothing_between_ranks_is_planted(tmp_path):
    answer = drilled(tmp_path, "not-reduced", ranks=1)
    assert answer.table[0]["otherwise"] == "one process: no other rank"
    assert [arm.name for arm in answer.arms] == ["undisturbed", "sham"], "and no run is made for it"


def test_what_the_job_shows_anyway_is_said_first_and_is_no_sighting(tmp_path):
    answer = drilled(tmp_path, "rate", changes={"all": by_rank_1})
    assert answer.says[0].startswith("The job has a finding already, with nothing planted: worker-loss-outlier")
    assert answer.table[0]["seen"] == "not in 50 steps"


def test_what_check_says_of_steps_before_the_fault_is_no_sighting(tmp_path):
    def early(step, rank, row):
        changed(row, "loss", rank, by=3.0, since=0)

    late = {"loss-1.5": early}
    engine = Drilled(late)
    faulty = engine.__call__

    class Late(Drilled):
        def __call__(self, way, run_folder):
            outcome = faulty(way, run_folder)
            for path in (run_folder / "planted").glob("*.json"):
                path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 50}))
            return outcome

    answer = drilled(tmp_path, "loss-1.5", job=Late(late))
    assert answer.table[0]["state"]["is"] == "not seen"
    assert [entry["code"] for entry in answer.table[0]["before"]] == ["worker-loss-outlier"]


def test_another_rank_than_that_of_the_fault_is_said(tmp_path):
    def by_rank_2(step, rank, row):
        changed(row, "loss", rank, by=1.0, bad=2)

    answer = drilled(tmp_path, "loss-1.5", changes={"loss-1.5": by_rank_2})
    assert answer.table[0]["rank"] == "rank 2, and it is rank 1"
    assert "Another rank is named for: loss of one rank × 1.5." in answer.says


def test_a_rank_that_the_job_does_not_have_is_said(tmp_path):
    job = Drilled()
    job.rank = RANKS
    answer = drilled(tmp_path, "nan", job=job)
    assert (answer.answer, answer.next) == ("undecided", ("Give --rank a number from 0 to 3.",))


def test_a_run_with_a_fault_that_comes_to_nothing_is_said(tmp_path):
    answer = drilled(tmp_path, "nan", fails=("nan",))
    assert answer.table[0]["otherwise"] == "the run came to nothing: it ended with status 1"


def test_a_job_that_never_comes_to_a_run_is_undecided(tmp_path):
    answer = drilled(tmp_path, "nan", fails=("undisturbed",))
    assert (answer.answer, answer.exit_code) == ("undecided", 3)


def test_a_job_that_ends_before_the_faults_is_undecided(tmp_path):
    job = Drilled()
    runs = Runs("drill", tmp_path / "t", job, {}, keeps_all=True)
    job.at, job.steps = STEPS, 2 * STEPS
    answer = DrillTrial(runs, job, []).answer()
    assert (answer.answer, answer.next) == ("undecided", ("Give --at fewer updates than the job makes.",))


@pytest.mark.parametrize(("at", "answered"), [(AT, "confirmed"), (STEPS, "undecided")])
def test_a_job_that_saves_ends_and_is_told_where_to_save(tmp_path, at, answered):
    class Saving(Drilled):
        def __call__(self, way, run_folder):
            outcome = super().__call__(way, run_folder)
            (run_folder / "saved.json").write_text(json.dumps({"updates": 60, "path": "out/last.pt", "rank": 0}))
            return outcome

    job = Saving()
    job.at, job.steps = at, 2 * STEPS
    runs = Runs("drill", tmp_path / "t", job, {}, keeps_all=True)
    answer = DrillTrial(runs, job, []).answer()
    assert answer.answer == answered
    assert "after update 60 the script saves 'out/last.pt'" in answer.says[0]
    assert "{folder}" in " ".join([*answer.says, *answer.next])


def test_a_larger_loss_is_forecast_sooner_and_a_rank_alone_never(tmp_path):
    run = Run(write_run(tmp_path / "r", num_ranks=4, num_steps=60))
    small, large = steps_until_seen(run, 1.002), steps_until_seen(run, 1.5)
    assert large is not None
    assert large < 30
    assert small is None or small > 4 * large
    assert steps_until_seen(Run(write_run(tmp_path / "one", num_ranks=1)), 1.5) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [({"only": ("fire",)}, "--only is 'fire'; faults are loss-1.02"), ({"at": 100}, "--at is 100, and a run has 100")],
)
def test_what_cannot_be_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        prepare(Asked("drill", ("true",)), **options)


def test_twelve_faults_are_planted_and_each_is_told_what_it_needs():
    prepared = prepare(Asked("drill", ("true",)))
    assert (len(FAULTS), prepared.takes) == (12, "14")
    assert isinstance(prepared.trial.job, DrilledJob)
    assert prepared.trial.job.plan["preset"] == "workers"
