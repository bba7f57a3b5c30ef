"""What rows of several lengths are filled up with."""

import pytest
import torch

from trueline.capture.probes.filling import NO_FILLING, filling_of


@pytest.mark.parametrize(
    ("rows", "filling"),
    [
        ([[4, 5, 0, 0, 0], [6, 7, 8, 0, 0], [9, 5, 4, 3, 2]], 0),
        ([[0, 0, 0, 4, 5], [0, 0, 6, 7, 8], [9, 5, 4, 3, 2]], 0),
        ([[4, 5, 0, 0, 0], [6, 7, 0, 0, 0], [9, 5, 4, 3, 2]], NO_FILLING),  # one length
        ([[4, 0, 5, 0, 0], [6, 0, 0, 0, 0], [9, 5, 4, 3, 2]], NO_FILLING),  # within a row, too
        ([[4, 5, 6, 7, 8], [6, 7, 8, 9, 1], [9, 5, 4, 3, 2]], NO_FILLING),
        ([[0, 0, 0, 0, 0], [6, 7, 0, 0, 0], [9, 5, 4, 0, 0]], 0),
    ],
)
def test_what_fills_rows_up_is_known_by_its_runs(rows, filling):
    assert int(filling_of(torch.tensor(rows))) == filling
