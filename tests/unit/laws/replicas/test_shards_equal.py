"""shards-equal: shards that begin equal and stay so are found; equal initial values that part are none."""

import numpy as np
import pytest
from tests.unit.healthy_run import rank_env, write_run

from trueline.laws.replicas import shards_equal
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import HeldAlike

PARAMS = ["norm.weight", "up.weight", "down.weight", "up.bias"]
SHAPES = [[16], [16, 8], [8, 16], [128]]
UNEQUAL, ALIKE = ([1, 2, 3, 4], [1, 5, 6, 7]), ([1, 2, 3, 4], [1, 2, 3, 4])
MOVED = ([11, 12, 13, 14], [11, 12, 13, 14])


def parts(path, *looks, shapes=SHAPES, alike=("norm.weight",)):
    """A Run of two ranks that hold one model together; each look has the digests of both."""
    copies = [HeldAlike(ranks=[0, 1], params=list(alike))] if alike else []
    changes = {"params": PARAMS, "param_shapes": shapes, "groups": [], "alike": copies}
    envs = {rank: rank_env(rank, 2, replica_key=f"rank {rank}", **changes) for rank in (0, 1)}
    rows = {
        (step, rank): {"param_digests": np.array(digests, dtype=np.uint64)}
        for step, look in enumerate(looks)
        for rank, digests in enumerate(look)
    }
    return write_run(path, rows, envs=envs)


def test_shards_that_stay_equal_are_found(tmp_path):
    (finding,) = shards_equal.check(parts(tmp_path, ALIKE, MOVED))
    assert (finding.severity, finding.ranks, finding.step_first) == ("warning", (0, 1), 0)
    assert finding.evidence["names"] == ["up.weight", "down.weight"]


def test_one_matrix_that_parts_does_not_hide_another(tmp_path):
    (finding,) = shards_equal.check(parts(tmp_path, ALIKE, ([11, 12, 13, 14], [11, 12, 15, 14])))
    assert finding.evidence["names"] == ["up.weight"]


@pytest.mark.parametrize(
    ("looks", "shapes"),
    [
        ((UNEQUAL, ([11, 12, 13, 14], [11, 15, 16, 17])), SHAPES),
        ((ALIKE, ([11, 12, 13, 14], [11, 15, 16, 14])), SHAPES),
        ((ALIKE, ALIKE), SHAPES),
        ((([1, 2, 3, 4], [1, 2, 6, 4]), ([11, 12, 13, 14], [11, 12, 16, 14])), SHAPES),
        ((ALIKE, MOVED), [[16], [8, 4], [4, 8], [128]]),
        ((ALIKE, MOVED), [[16], [4, 16, 8], [4, 8, 16], [128]]),
    ],
    ids=["apart", "equal constants that part", "frozen or zero", "one cut matrix repeated", "tiny", "experts"],
)
def test_healthy_shards_are_left_alone(tmp_path, looks, shapes):
    assert shards_equal.check(parts(tmp_path, *looks, shapes=shapes)) == []


def test_what_cannot_be_told(tmp_path):
    with pytest.raises(CannotTell, match="known to hold shards"):
        shards_equal.check(parts(tmp_path / "by hand", ALIKE, MOVED, alike=()))
    with pytest.raises(CannotTell, match="two looks"):
        shards_equal.check(parts(tmp_path / "once", ALIKE))


def test_matrices_that_are_held_in_copies_are_equal_rightly(tmp_path):
    unequal = ([1, 2, 3, 4], [1, 2, 6, 4]), ([11, 12, 13, 14], [11, 12, 16, 14])
    shapes = [[16], [16, 8], [4, 8], [128]]
    assert shards_equal.check(parts(tmp_path, *unequal, shapes=shapes, alike=("norm.weight", "up.weight"))) == []
