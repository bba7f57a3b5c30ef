"""What the tests of imports share: how the command line measures, and rows by site."""

from __future__ import annotations

import numpy as np

from trueline.cli.verbs.import_ import measure
from trueline.store.importers.checkpoint_weights import WeightOptions
from trueline.store.reader import Run


def options(**settings):
    return WeightOptions(measure(), **settings)


def rows_by_site(run, **chosen):
    """Rows by (phase, name, call, slot), of which no two are alike."""
    rows = (run if isinstance(run, Run) else Run(run)).records(**chosen).to_pylist()
    found = {(row["phase"], row["name"], row["call"], row["slot"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def expect_numbers(row, values):
    """A row has the exact statistics of ``values``, an array that is finite throughout."""
    wide = np.asarray(values, dtype=np.float64)
    assert row["shape"] == list(wide.shape)
    assert (row["numel"], row["nan"], row["pos_inf"], row["neg_inf"]) == (wide.size, 0, 0, 0)
    assert row["zero"] == (wide == 0).sum()
    assert (row["min"], row["max"]) == (wide.min(), wide.max())
    np.testing.assert_allclose([row["sum"], row["sum_sq"]], [wide.sum(), (wide**2).sum()], rtol=1e-6, atol=1e-12)
