"""`trial shrink` on jobs that exist in numbers only."""

import random

import pytest

from trueline.schema.errors import InputError
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.shrink.axes import BATCH, LOADER, RANKS, STEPS, Axis, axes_of, sized
from trueline.trials.shrink.shrink import PATIENCE, ShrinkTrial

AXES = (Axis(STEPS, 64), Axis(RANKS, 4), Axis("--layers", 12), Axis(BATCH, 32))
LEAST = {STEPS: 8, RANKS: 2, "--layers": 6, BATCH: 2}


def tried(tmp_path, shows, *, rate=1.0, axes=AXES, max_runs=400, twin=False, seed=0):
    """Of a job that shows it by chance where ``shows(sizes, cured)``; None: it does not run."""
    stream = random.Random(seed)

    def engine(way, place):
        there = shows(way.changes["sizes"], way.changes["cured"])
        return Outcome(None, "it ended with status 1") if there is None else Outcome(there and stream.random() < rate)

    trial = ShrinkTrial(
        Runs("shrink", tmp_path / "t", engine, {}, max_runs),
        "?",
        axes,
        lambda arm, sizes, cured: Way(arm, changes={"sizes": dict(sizes), "cured": cured}),
        str,
        twin,
    )
    return trial.answer(), trial


def is_large_enough(sizes, cured):
    return not cured and all(sizes[name] >= least for name, least in LEAST.items())


@pytest.mark.parametrize(("rate", "most"), [(1.0, 40), (0.5, 160)])
def test_the_smallest_job_is_found_within_twice_of_each_axis(tmp_path, rate, most):
    found, trial = tried(tmp_path, is_large_enough, rate=rate, max_runs=most)
    assert found.answer == "confirmed", found
    last = trial._accepted[-1]
    assert all(LEAST[name] <= last[name] < 2 * LEAST[name] for name in LEAST), last
    assert found.runs <= most
    assert found.next == (str(last),)


def test_axes_that_hold_each_other_are_tried_again(tmp_path):
    """Layers can be few only once the batch is small."""
    found, trial = tried(tmp_path, lambda sizes, cured: sizes["--layers"] >= 6 or sizes[BATCH] <= 2)
    assert trial._accepted[-1]["--layers"] == 1, found


def test_a_fault_that_only_the_small_size_makes_is_given_up(tmp_path):
    """At a batch of one it shows whatever is cured, as batch normalisation does."""
    found, trial = tried(tmp_path, lambda sizes, cured: not cured or sizes[BATCH] == 1, twin=True)
    assert trial._accepted[-1][BATCH] == 2, found
    assert trial._accepted[-1][STEPS] == 1
    assert "the healthy twin shows it too" in found.says[1]
    assert "Its healthy twin is clean." in found.says


def test_nothing_smaller_never_and_a_size_that_does_not_run(tmp_path):
    same, _ = tried(tmp_path / "a", lambda sizes, cured: sizes == {axis.name: axis.now for axis in AXES})
    assert same.answer == "excluded"
    never, _ = tried(tmp_path / "b", lambda sizes, cured: False)
    assert (never.answer, never.runs) == ("undecided", PATIENCE)
    odd, trial = tried(tmp_path / "c", lambda sizes, cured: None if sizes[RANKS] < 4 else True)
    assert trial._accepted[-1] == {STEPS: 1, RANKS: 4, "--layers": 1, BATCH: 1}
    assert any("does not run: it ended with status 1" in line for line in odd.says)
    few, _ = tried(tmp_path / "d", is_large_enough, max_runs=5)
    assert (few.answer, few.exit_code) == ("undecided", 3)


def test_the_axes_of_a_command_and_what_it_is_at_another_size():
    more = "--num-layers 24 --tensor-model-parallel-size 4 --depth 6 --lr 1".split()  # noqa: SIM905
    words = ["torchrun", "--nproc-per-node=8", "t.py", *more]
    axes = axes_of(words, steps=20, batch=16, users_options=["--depth"])
    assert axes == [Axis(STEPS, 20), Axis(RANKS, 8, 4), Axis("--num-layers", 24), Axis("--depth", 6), Axis(BATCH, 16)]
    assert [axes[1].smaller(8), axes[1].smaller(4)] == [4, None]
    changed, changes = sized(words, {STEPS: 5, RANKS: 4, "--num-layers": 3, BATCH: 2})
    assert " ".join(changed).startswith(
        "torchrun --nproc-per-node=4 t.py --num-layers 3 --tensor-model-parallel-size 4"
    )
    assert changes == {"switches": [{**LOADER, "off": 2}], "off": [BATCH]}
    assert BATCH not in [axis.name for axis in axes_of(["t.py", "--batch-size", "4"], steps=20, batch=4)]
    with pytest.raises(InputError, match="no option of the command with a whole number"):
        axes_of(words, steps=20, batch=None, users_options=["--no"])
