"""`trial bisect` on lines of versions that exist in numbers only."""

import random

import pytest

from trueline.trials.bisect.bisect import PATIENCE, BisectTrial
from trueline.trials.bisect.line import Line
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome


def tried(tmp_path, size, first, *, rate=1.0, false_rate=0.0, broken=(), seed=0, max_runs=400, bad_at=None):
    stream, asked = random.Random(seed), []

    def engine(way, place):
        version = int(way.changes["version"])
        asked.append(version)
        if version in broken:
            return Outcome(None, "it ended with status 125")
        is_bad = version >= first if bad_at is None else bad_at(version, len(asked))
        return Outcome(stream.random() < (rate if is_bad else false_rate))

    trial = BisectTrial(
        Runs("bisect", tmp_path / f"t{seed}", engine, {}, max_runs),
        "?",
        size,
        lambda arm, version: Way(arm, changes={"version": version}),
        lambda version: f"v{version} subject",
        seed=seed,
    )
    return trial.answer(), asked


@pytest.mark.parametrize(("size", "first"), [(2, 1), (65, 1), (65, 40), (65, 64), (1000, 617)])
def test_a_fault_that_always_shows_takes_about_log2_runs(tmp_path, size, first):
    found, asked = tried(tmp_path, size, first)
    assert (found.answer, found.credible) == ("confirmed", (f"v{first} subject",)), found
    assert len(asked) <= 6 + 2.2 * size.bit_length()


@pytest.mark.in_turn
def test_a_fault_by_chance_is_found_with_the_error_asked(tmp_path):
    right = [tried(tmp_path, 65, 23, rate=0.3, seed=seed)[0].credible == ("v23 subject",) for seed in range(20)]
    assert sum(right) >= 18


def test_commits_that_do_not_run_are_left_out_and_named_with_the_one_after_them(tmp_path):
    found, asked = tried(tmp_path, 65, 40, broken=(3, 20, 32, 38, 39, 50))
    assert found.credible == ("v38 subject", "v39 subject", "v40 subject"), found
    assert "which do not run: v38 subject; v39 subject" in found.says[0]
    assert all(asked.count(version) <= 1 for version in (32, 38, 39))
    far, _ = tried(tmp_path / "far", 65, 41, broken=(3, 20, 32, 38, 39, 50))
    assert far.credible == ("v41 subject",), far


def test_ends_that_are_not_what_they_should_be_are_undecided(tmp_path):
    never, asked = tried(tmp_path / "a", 9, 99)
    assert (never.answer, asked.count(8)) == ("undecided", PATIENCE)
    always, _ = tried(tmp_path / "b", 9, 0)
    assert "good end, v0 subject, shows it too" in always.says[0]
    broken, _ = tried(tmp_path / "c", 9, 4, broken=(8,))
    assert broken.says[0] == "The bad end, v8 subject, comes to no outcome: it ended with status 125."
    few, _ = tried(tmp_path / "d", 65, 40, max_runs=7)
    assert (few.answer, few.exit_code) == ("undecided", 3)


def test_a_machine_that_drifts_is_noticed(tmp_path):
    found, _ = tried(tmp_path, 4000, 0, bad_at=lambda version, number: number < 9 and version > 0)
    assert found.answer == "undecided", found
    assert "does not show it any more" in found.says[0]


def test_a_prior_shifts_what_is_run_first():
    line = Line(65, [1.0] * 60 + [100.0] * 5)
    assert line.next() in (61, 62)
    assert Line(65).next() in (31, 32, 33)
