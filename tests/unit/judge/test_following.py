"""Checks that follow say what they say of the whole Run, at every step, whatever was kept of earlier looks."""

import functools
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.following import assert_follows, followers_alone, in_stretches, said, whole
from tests.run_kinds import CHANGES, write_kind
from tests.synthetic_runs import write_part, write_run

from trueline.judge import check_run, following
from trueline.judge.follows import ByStep
from trueline.judge.registry import installed_checks
from trueline.laws.unlike_workers import comparable, outliers, quiet, quiet_sets
from trueline.schema.finding import Finding
from trueline.store.judged import read_judged
from trueline.store.log.part_files import PartFiles
from trueline.store.reader import Run

ENDS = (9, 40, 61, 80, 119)
LOOKED_AT_OFTEN = ("healthy", "one step", "multiplied thrice", "drift", "gradient jumps", "a sample again, much later")
NAMES = {
    *("rank-config-differs", "worker-silent", "updates-apart", "random streams"),
    *("gradient-not-reduced", "reduction-mismatch", "replica-drift", "worker-nonfinite"),
    *("quiet in loss", "quiet in norm", "quiet in direction"),
    *("steady loss", "steady norms", "steady falls"),
    *("quiet order", "quiet pairs", "quiet tokens"),
    "fresh samples",
}
"""Under which is kept what is known."""


def healthy(step, rank, row):
    """What a sampled step leaves of its reduction, and digests now and then."""
    row |= {"tokens": 64.0, "num_micro": 1}
    if step % 2 == 0:
        row |= {"group_reduce_residual": [1e-8], "group_reduce_floor": [2e-5], "group_reduce_factor": [1.0]}
        row |= {"group_reduce_shape_residual": [1e-8], "group_used_residual": [0.0], "group_used_floor": [2e-5]}
        row |= {"group_used_factor": [0.9], "group_used_shape_residual": [0.0], "group_used_local": [0.6]}
        row |= {"param_grad_norms": [row["grad_norm"]], "used_param_norms": [0.3], "group_seen": [1.0]}
        row |= {"group_grad_norms": [row["grad_norm"]], "rng_drawn": [100 * step + rank + 1, 0, 0, 0]}
    row |= {"passes": step + 1, "rng_numpy": 100 * step + rank + 1}
    if step % 5 == 0:
        row["param_digests"] = [step + 1]


def with_fault(**faults):
    """``healthy``, and from a step on, or at it, what ``faults`` says of a rank."""

    def change(step, rank, row):
        healthy(step, rank, row)
        for columns in faults.values():
            if step in columns["at"] and rank in columns.get("ranks", range(4)) and (step % 2 == 0 or "any" in columns):
                row.update({name: value for name, value in columns.items() if name not in ("at", "ranks", "any")})

    return change


def jump(column, value, *, at, lasts):
    """Of all ranks together, each its own."""
    scaled = [np.multiply(value, 1 + 0.01 * rank).tolist() for rank in range(4)]
    return {
        f"rank {rank}": {"at": range(at, at + lasts), "ranks": [rank], "any": 1, column: scaled[rank]}
        for rank in range(4)
    }


def each_rank(at, columns):
    """What ``columns`` gives for a step and a rank."""
    return {
        f"step {step}, rank {rank}": {"at": [step], "ranks": [rank], "any": 1, **columns(step, rank)}
        for step in at
        for rank in range(4)
    }


def lasting(step, rank, by):
    """A loss of which each rank has its own level."""
    return 3 + by * rank + float(np.random.default_rng([step, rank]).normal()) / 20


FAULTS = {
    "healthy": with_fault(),
    "one step": with_fault(one={"at": [70], "ranks": [1], "group_reduce_residual": [0.1]}),
    "first step; seeded in between; equal now and then": with_fault(
        one={"at": [0], "ranks": [1], "group_reduce_residual": [0.1]},
        two={"at": [18, 50, 90], "ranks": [1], "rng_drawn": [5, 0, 0, 0]},
        **{
            f"rank {rank}": {
                "at": [step for step in range(5, 120, 5) if step % 20],
                "ranks": [rank],
                "any": 1,
                "param_digests": [rank + 1000],
            }
            for rank in range(4)
        },
    ),
    "last step; modes differ": with_fault(
        one={"at": [118], "ranks": [1], "group_reduce_residual": [0.1]},
        **each_rank(range(120), lambda step, rank: {"eval_modules": 2.0 * (step + rank == 93)}),
    ),
    "passes differ": with_fault(
        **each_rank(range(120), lambda step, rank: {"passes": step + (step > 85 and rank == 1)})
    ),
    # in a row over the ends of stretches, which are at 20, 40, 60 ...
    "multiplied thrice": with_fault(one={"at": [38, 40, 42], "group_used_factor": [4.0], "group_used_residual": [0.0]}),
    "changed in between; random streams": with_fault(
        one={"at": range(60, 80), "group_reduce_residual": [float("nan")], "group_reduce_shape_residual": [0.3]},
        **each_rank(range(30, 120, 5), lambda step, rank: {"rng_torch": step + rank * (step > 60), "rng_python": 7}),
    ),
    "not finite": with_fault(one={"at": [90], "ranks": [2], "any": 1, "loss": float("nan")}),
    "drift": with_fault(one={"at": [50], "ranks": [2], "any": 1, "param_digests": [3]}),
    "drift to the end; rates differ; multiplied twice": with_fault(
        one={"at": range(50, 120, 10), "ranks": [2], "any": 1, "param_digests": [3]},
        **each_rank(range(120), lambda step, rank: {"lr": [1e-3 * (1 + (step == 66) * rank)]}),
        two={"at": [38, 40], "group_used_factor": [4.0]},
    ),
    "loss jumps": with_fault(**jump("loss", 9.0, at=90, lasts=3)),
    "loss jumps too early to be judged": with_fault(**jump("loss", 9.0, at=30, lasts=3)),
    "loss jumps where the learning rate does": with_fault(
        one={"at": range(120), "any": 1, "lr": [1e-3]},
        two={"at": range(70, 120), "any": 1, "lr": [2e-3]},
        **jump("loss", 9.0, at=70, lasts=50),
    ),
    "loss jumps at a short window": with_fault(
        one={"at": range(120), "any": 1, "num_micro": 4},
        two={"at": [79], "any": 1, "num_micro": 2},
        **jump("loss", 9.0, at=79, lasts=1),
    ),
    "micro-batches change for good": with_fault(
        one={"at": range(120), "any": 1, "num_micro": 4},
        two={"at": range(79, 120), "any": 1, "num_micro": 2},
        **jump("loss", 9.0, at=79, lasts=41),
    ),
    "gradient jumps": with_fault(**jump("grad_norm", 900.0, at=81, lasts=1)),
    "parameter jumps": with_fault(**jump("param_grad_norms", [900.0], at=110, lasts=1)),
    "parameter vanishes": with_fault(**jump("param_grad_norms", [1e-6], at=110, lasts=3)),
    "parameter is zero": with_fault(**jump("param_grad_norms", [0.0], at=108, lasts=12)),
    "differ for good": with_fault(**each_rank(range(120), lambda step, rank: {"loss": lasting(step, rank, 0.1)})),
    "differ for good, late": with_fault(
        **each_rank(range(70, 120), lambda step, rank: {"loss": lasting(step, rank, 0.3)})
    ),
    "documents": with_fault(**each_rank(range(120), lambda step, rank: {"loss": 3 + np.sin(step / 4 + 2 * rank)})),
    "copies": with_fault(one={"at": range(120), "ranks": [1, 2], "any": 1, "grad_norm": 0.7}),
    "equal losses": with_fault(
        **{f"step {step}": {"at": [step], "any": 1, "loss": 3 + step / 7} for step in (50, 71, 90)}
    ),
    "tokens unequal": with_fault(
        **each_rank(range(120), lambda step, rank: {"tokens": 64.0 + 64 * (rank == 2) + 100 * ((step + rank) % 4 == 0)})
    ),
    "tokens wild": with_fault(
        **each_rank(range(60, 120), lambda step, rank: {"tokens": 64.0 if (step + rank) % 4 else 900.0})
    ),
    "losses of samples": with_fault(
        **each_rank(range(120), lambda step, rank: {"part_losses": [3 + rank / 9, 3 + step % 5, 2.5]})
    ),
    "a sample again, at once; multiplied with a gap": with_fault(
        one={"at": [50, 51], "ranks": [1], "any": 1, "sample_digests": [10**6, 10**6 + 1]},
        two={"at": [36, 38, 42], "group_used_factor": [4.0]},
    ),
    "a sample again, much later": with_fault(one={"at": [5, 117], "ranks": [1], "any": 1, "sample_digests": [10**6]}),
    "a sample on two ranks; not reduced": with_fault(
        one={"at": [90], "ranks": [1, 2], "any": 1, "sample_digests": [10**6]},
        **{
            f"rank {rank}": {
                "at": [66],
                "ranks": [rank],
                "group_used_residual": [0.5],
                "group_used_local": [0.0],
                "used_param_norms": [0.1 + rank],
            }
            for rank in range(4)
        },
    ),
    "an epoch ends; other lengths": with_fault(
        one={"at": range(70, 120), "any": 1, "epoch": 1},
        two={"at": range(80, 120), "group_used_residual": [0.0, 0.0]},
    ),
    "an epoch is told late; none sampled for long": with_fault(
        one={"at": range(70), "any": 1, "epoch": None},
        two={"at": range(30, 90), **dict.fromkeys(("group_reduce_residual", "group_used_residual"))},
    ),
    "one rank reads; silent on a parameter": with_fault(
        one={"at": range(120), "any": 1, "ranks": [0, 1, 2], "sample_digests": None},
        two={"at": range(44, 120, 2), "ranks": [2], "param_grad_norms": [-1.0]},
    ),
    "silent": with_fault(one={"at": [30, 71], "ranks": [2], "any": 1, "grad_norm": 0.0}),
    "few tokens": with_fault(one={"at": [100], "any": 1, "tokens": 20.0}),
    "rates now and then": with_fault(one={"at": range(0, 120, 7), "any": 1, "lr": [1e-3]}),
}
"""By what is wrong: of several, each is of columns of its own."""


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_said_is_the_same_judged_whole_and_followed(tmp_path, fault):
    path = write_run(tmp_path / "run", num_steps=120, change=FAULTS[fault], rows_a_part=50)
    followed = assert_follows(path, ENDS if fault in LOOKED_AT_OFTEN else [80], steps=20)
    if fault == "healthy":
        assert followed == NAMES
    if fault in ("loss jumps where the learning rate does", "loss jumps at a short window"):
        assert {"steady loss", "steady norms"} <= followed
    if fault in ("loss jumps", "few tokens", "rates now and then"):
        assert "steady loss" not in followed
    if followed:
        assert ("fresh samples" in followed) != fault.startswith(("a sample", "an epoch"))
    if fault == "one step":
        assert followed == NAMES - {"reduction-mismatch"}


@pytest.mark.parametrize("fault", ["healthy", "documents", "differ for good, late"])
def test_it_is_the_same_where_dependence_is_measured_in_fewer_steps_than_there_are(tmp_path, monkeypatch, fault):
    for module in (comparable, outliers, quiet, quiet_sets):
        monkeypatch.setattr(module, "FIRST_STEPS", 30)
    assert_follows(write_run(tmp_path / "run", num_steps=120, change=FAULTS[fault]), ENDS[1::2], steps=20)


@pytest.mark.parametrize("kind", CHANGES)
def test_it_is_the_same_of_runs_of_all_kinds(tmp_path, kind):
    assert_follows(write_kind(tmp_path / "run", kind), [61], steps=20)


@pytest.mark.in_turn
def test_it_is_the_same_after_every_step(tmp_path):
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=60, change=FAULTS["multiplied thrice"])
    assert_follows(path, range(37, 53), steps=10)


def test_a_further_look_shows_checks_only_what_is_new(tmp_path, monkeypatch):
    run = Run(write_run(tmp_path / "run", num_ranks=2, num_steps=120, change=healthy))
    shown = []

    def follower(run):
        shown.append(run.steps.tolist())
        return []

    checks = [replace(installed_checks()[0], code="told", find=follower, follows=ByStep())]
    monkeypatch.setattr(check_run, "installed_checks", lambda: checks)
    with in_stretches(20):
        said(run.before(100))
        said(run.before(101))
        said(run)
    assert shown == [
        [*range(40)], [*range(40, 80)], [*range(80, 100)],
        [*range(80, 101)],
        [*range(80, 100)], [*range(100, 120)],
    ]  # fmt: skip


def test_what_checks_need_of_a_part_is_read_once(tmp_path, monkeypatch):
    run = Run(write_run(tmp_path / "run", num_ranks=2, num_steps=120, change=healthy, rows_a_part=40))
    read = Counter()

    def again(files, part, names, **within):
        read[str(part), {"loss", "group_used_residual"} <= {*names}] += 1
        return real(files, part, names, **within)

    real = PartFiles.again
    monkeypatch.setattr(PartFiles, "again", again)
    with in_stretches(20), followers_alone():
        said(run)
    parts = sorted(part for part, needed in read if needed)
    assert len(parts) == 6  # what else is read of the first steps, whatever the length, are columns of groups alone
    assert {read[part, True] for part in parts} == {1}


def state(path):
    return path / "judged.json"


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """By fault, a Run of two ranks, what is said of it, and what is kept of that; each once for all tests."""

    @functools.cache
    def judge(fault):
        path = write_run(tmp_path_factory.mktemp("judged") / "run", num_ranks=2, num_steps=120, change=FAULTS[fault])
        with in_stretches(20):
            said(path)
        return path, whole(Run(path)), state(path).read_text()

    return judge


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"num_steps": 100', '"num_steps": 120'),
        lambda text: "",
        lambda text: json.dumps(json.loads(text) | {"version": 99}),
        lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "crc32"}),
    ],
)
def test_what_is_kept_and_torn_or_of_another_version_is_made_again(judged, damage):
    with followers_alone():
        path, expected, kept = judged("one step")
        with in_stretches(20):
            state(path).write_text(damage(kept))
            assert said(path) == expected
            assert state(path).read_text() == kept


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-1] + b"x", None])
def test_a_large_array_that_is_kept_and_torn_or_lost_is_made_again(tmp_path, monkeypatch, damage):
    monkeypatch.setattr("trueline.store.judged.LARGE", 1)
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=120, change=FAULTS["a sample again, much later"])
    with followers_alone(), in_stretches(20):
        expected = whole(Run(path))
        said(Run(path).before(110))
        kept = read_judged(str(path))
        file = path / "judged" / kept["silent"]["fresh samples"]["carried"]["seen 0-8"][2]
        if damage is None:
            file.unlink()
        else:
            file.write_bytes(damage(file.read_bytes()))
        said(Run(path).before(110))
        assert read_judged(str(path)) == kept
        assert said(path) == expected
        named = [each[2] for one in read_judged(str(path))["silent"].values() for each in one["carried"].values()]
        assert {each.name for each in (path / "judged").iterdir()} == {name for name in named if name.endswith(".bin")}


@pytest.mark.parametrize("what", ["rows", "environment", "program"])
def test_what_is_kept_of_another_run_or_program_counts_for_nothing(judged, tmp_path, monkeypatch, what):
    """The kept part says that all was silent; it is put into a Run of which that is not true."""
    with followers_alone(), in_stretches(20):
        kept_of_healthy = judged("healthy")[2]
        other = {"num_steps": 120, "change": FAULTS["one step"]}
        if what == "rows":
            faulty = write_run(tmp_path / "run", num_ranks=2, **other)
            next((faulty / "workers").glob("part-r00001-*")).unlink()
            write_part(faulty, 1, [{"step": 119, "loss": 1.0}])
        elif what == "environment":
            faulty = write_run(tmp_path / "run", num_ranks=2, env={"grad_dtype": "torch.bfloat16"}, **other)
        else:
            faulty = write_run(tmp_path / "run", num_ranks=2, **other)
            monkeypatch.setattr(following, "_program", lambda files: "another")
        state(faulty).write_text(kept_of_healthy)
        assert said(faulty) == whole(Run(faulty))


def test_a_run_that_may_only_be_read_is_judged_all_the_same(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=120, change=healthy)

    def refuse(*given, **named):
        raise PermissionError("read only")

    monkeypatch.setattr("trueline.store.judged.open_replacement", refuse)
    with in_stretches(20):
        assert said(path) == whole(Run(path))
    assert read_judged(str(path)) is None


def test_a_check_that_breaks_on_a_stretch_is_shown_the_whole(tmp_path, monkeypatch):
    def find(run):
        if len(run.steps) < 120:
            raise ZeroDivisionError
        return [Finding("told", "info", f"{len(run.steps)} steps")]

    checks = [replace(installed_checks()[0], code="told", find=find, follows=ByStep())]
    monkeypatch.setattr(check_run, "installed_checks", lambda: checks)
    with in_stretches(20):
        report = check_run.check(Run(write_run(tmp_path / "run", num_ranks=2, num_steps=120, change=healthy)))
    assert [finding.claim for finding in report.findings] == ["120 steps"]


def test_a_short_run_keeps_nothing(tmp_path):
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=60, change=healthy)
    said(path)
    assert not state(path).exists()
    assert np.array_equal(Run(path).steps, range(60))
