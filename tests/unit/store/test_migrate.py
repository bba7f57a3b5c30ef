"""The tiny Run of every schema version that ever was still reads as it was recorded."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trueline.schema.files.run_manifest import SCHEMA_VERSION
from trueline.store.migrate import OLDEST_VERSION, to_current
from trueline.store.reader import Run
from trueline.store.rows import worker_schema

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("version", range(OLDEST_VERSION, SCHEMA_VERSION + 1))
def test_a_run_of_every_version_is_kept(version):
    """Two ranks: rank 0 sealed steps 0 and 1 and closed after step 2, rank 1 was killed after step 1."""
    run = Run(DATA / f"run_v{version}")
    assert run.problems == []
    assert run.ranks == [0, 1]
    assert run.unclosed == [1]
    assert run.manifest.adapter == "ddp"
    assert run.env[1].params == ["weight", "bias"]
    assert run.live_findings[0].code == "worker-nonfinite"
    loss_TN, measured_TN = run.pivot("loss")
    assert measured_TN.tolist() == [[True, True], [True, True], [True, False]]
    assert np.array_equal(loss_TN, [[0.5, 1.5], [1.0, math.nan], [1.5, math.nan]], equal_nan=True)
    assert run.pivot("cosine_mean")[1].tolist() == [[True, True], [False, False], [False, False]]
    assert run.lists("sample_digests")[2, 0].tolist() == [2**64 - 1, 2]
    assert run.stack("param_grad_norms")[0][1, 1].tolist() == [1.0, 0.25]


def test_columns_that_a_version_lacked_are_null():
    table = to_current(
        pa.table({"loss": pa.array([0.5], pa.float32()), "was": ["x"]}), worker_schema(), ["step", "loss", "sketch"]
    )
    assert table.schema == pa.schema([worker_schema().field(name) for name in ("step", "loss", "sketch")])
    assert table.to_pylist() == [{"step": None, "loss": 0.5, "sketch": None}]
