"""`trial sync` on jobs that exist in numbers only: each row of its table, by chance too, and with its decoy."""

import random

import pytest

from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.sync import LEAST_SLOW, MOST_SLOW, NEVER_AFTER, SyncTrial

ALL = ("base", "blocking", "sham", "poison", "poison 2")


def tried(tmp_path, rates, *, measured=None, codes=None, rate=1.0, max_runs=200, seed=0):
    """Of arms in ``rates`` the rest never shows it; ``codes`` are what an arm has besides."""
    stream, asked = random.Random(seed), []

    def engine(way, place):
        asked.append(way)
        showed = stream.random() < (rate if way.arm in rates else 0.0)
        found = ("worker-nonfinite",) if way.arm in (codes or ()) and stream.random() < rate else ()
        found += ("replica-drift",) if showed else ()
        return Outcome(showed, measured=(measured or {}).get(way.arm, 1.0), codes=found)

    return SyncTrial(Runs("sync", tmp_path / "t", engine, {}, max_runs), "?", seed=seed).answer(), asked


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize(
    ("shown", "more", "answer", "kind"),
    [
        (("base", "sham", "poison"), {}, "confirmed", "ordering"),
        (("base", "poison"), {}, "undecided", None),  # any delay cures it
        (("base", "blocking", "sham", "poison"), {"codes": ("poison",)}, "confirmed", "memory"),
        ((*ALL,), {"measured": {"poison": 9.0}}, "confirmed", "memory"),
        ((*ALL,), {"measured": {"poison 2": 0.1}}, "confirmed", "memory"),
        (("base", "blocking", "sham", "poison"), {}, "confirmed", "memory"),  # gone with zeros
        ((*ALL,), {"measured": {"poison": 3.0}}, "excluded", "neither"),
        ((), {"codes": ("poison 2", "poison 2 + blocking")}, "confirmed", "memory"),
        ((), {"codes": ("poison", "poison + blocking")}, "confirmed", "memory"),
        ((), {"codes": ("poison",)}, "confirmed", "filling"),
        ((), {}, "undecided", None),
    ],
)
def test_each_row_of_the_table(tmp_path, rate, shown, more, answer, kind):
    found, _ = tried(tmp_path, shown, rate=rate, **more)
    assert found.answer == answer, found
    if kind:
        assert found.credible == (kind,)
        assert found.next
    assert found.runs <= (40 if rate == 1 else 120)


def test_the_arms_are_what_they_say(tmp_path):
    _, asked = tried(tmp_path, ("base", "sham"))
    ways = {way.arm: way for way in asked}
    assert ways["base"].environ == {}
    assert ways["blocking"].environ["CUDA_LAUNCH_BLOCKING"] == "1"
    assert LEAST_SLOW <= ways["sham"].changes["slow"] <= MOST_SLOW
    _, asked = tried(tmp_path / "other", (), codes=("poison", "poison + blocking"))
    ways = {way.arm: way for way in asked}
    assert [way.arm for way in asked[:NEVER_AFTER]] == ["base"] * NEVER_AFTER
    assert set(ways["poison + blocking"].environ) >= {"MALLOC_PERTURB_", "CUDA_LAUNCH_BLOCKING"}
    assert set(ways["poison"].environ) == {"MALLOC_PERTURB_"}


def test_base_runs_among_all_arms(tmp_path):
    _, asked = tried(tmp_path, ALL)
    after = [way.arm for way in asked][2:]
    assert after.count("base") * 2 >= len(after) - 1
