"""`clean.json`: which weights are known to be clean, and what is said where that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.synthetic_runs import write_run

import trueline
from trueline.integrations.checkpoints import Checkpoints
from trueline.schema.errors import RunError
from trueline.store.clean import Clean, OpenFault, read_clean, write_clean

FAULT = OpenFault("worker-nonfinite", "error", 20, "The loss is not finite at step 20.", 0.0)


@pytest.mark.parametrize(
    ("step", "judged_to", "faults", "num_updates", "clean"),
    [
        (30, 30, (), 30, True),
        (30, 30, (), 31, None),
        (19, 30, (FAULT,), 19, True),
        (19, 30, (FAULT,), 20, False),
        (None, 30, (FAULT,), 0, False),
        (None, None, (), 0, None),
    ],
)
def test_weights_are_clean_if_the_step_that_began_with_them_is(step, judged_to, faults, num_updates, clean):
    assert Clean("run", step, judged_to, 0.1, faults).covers(num_updates) is clean


def test_only_an_error_is_open():
    warning = OpenFault("loss-spike", "warning", 3, "The loss jumps.", 1e-3)
    assert [Clean("run", 2, 9, 0.1, faults).is_open for faults in ((), (warning,), (warning, FAULT))] == [
        False,
        False,
        True,
    ]


def test_what_is_written_is_read_and_a_flipped_bit_is_nothing(tmp_path: Path):
    clean = Clean(str(tmp_path), 19, 30, 0.1, (FAULT,), ("grad-spike: it takes 48 steps",))
    write_clean(str(tmp_path), clean)
    assert read_clean(str(tmp_path)) == clean
    assert str(clean) == "Clean to step 19: error worker-nonfinite: The loss is not finite at step 20."
    file = tmp_path / "clean.json"
    file.write_bytes(file.read_bytes().replace(b"19", b"29"))
    assert read_clean(str(tmp_path)) is None
    write_clean(str(tmp_path / "nowhere"), clean)  # nothing is raised


def test_a_run_that_nobody_judged_is_judged_now(tmp_path: Path):
    def same_samples(step, rank, row):
        row["sample_digests"] = [step + 1 if step >= 30 else 1000 * rank + step + 1]

    healthy, bad = (
        write_run(tmp_path / "healthy", num_ranks=2),
        write_run(tmp_path / "bad", num_ranks=2, change=same_samples),
    )
    assert (trueline.clean(healthy).step, trueline.clean(healthy).faults) == (39, ())
    clean = trueline.clean(bad)
    assert (clean.step, clean.judged_to, clean.is_open) == (29, 39, True)
    assert [fault.code for fault in clean.faults] == ["duplicate-data"]
    assert any(why.startswith("loss-spike: ") for why in clean.not_looked_at)
    assert not (tmp_path / "bad" / "clean.json").exists()
    with pytest.raises(RunError, match="nowhere"):
        trueline.clean(tmp_path / "nowhere")


def test_a_start_that_goes_on_with_a_run_is_not_known_to_be_clean_by_what_an_earlier_one_left(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trueline.watch(model, optimizer, out=tmp_path / "run").close()
    write_clean(str(tmp_path / "run"), Clean(str(tmp_path / "run"), 100, 100, 0.1))
    watch = trueline.watch(model, optimizer, out=tmp_path / "run", resume=True, step=50)
    clean = trueline.clean(tmp_path / "run")
    watch.close()
    assert (clean.step, clean.covers(60)) == (None, None)


def test_what_a_checkpoint_is_said_to_be_is_read_and_never_judged_in_training(tmp_path: Path):
    run = write_run(tmp_path / "run", num_ranks=2)
    checkpoints = Checkpoints(run, "mark")
    assert (checkpoints.document(3)["clean"], checkpoints.document(3)["says"]) == (None, "No step was judged yet.")
    write_clean(run, Clean(run, 19, 30, 0.1, (FAULT,)))
    assert [checkpoints.document(updates)["clean"] for updates in (19, 20)] == [True, False]
    assert checkpoints.is_held()
