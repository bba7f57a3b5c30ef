"""The bench of causes: a fault of each of its models is recorded, dumped, imported and judged."""

from __future__ import annotations

import pytest
from benchmarks.rl.causes import part
from benchmarks.rl.causes.faults import OPEN
from benchmarks.rl.causes.twins import TWINS


@pytest.mark.parametrize("model", ["small", "large"])
def test_a_fault_of_each_model_is_judged_as_recorded_and_as_imported(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model == "large":
        pytest.importorskip("transformers")
    monkeypatch.setattr(part, "STEPS", 2)
    fault = next(fault for fault in OPEN if fault.name == "top-k-processed")
    recorded, imported = part.judged(fault, model, 1)
    assert recorded["cause"] == "named"
    assert (imported["form"], imported["steps"]) == ("slime", 2)
    assert imported["tokens"] == recorded["tokens"]
    assert imported["mean_abs_diff"] == pytest.approx(recorded["mean_abs_diff"])


def test_there_are_twelve_of_each_and_each_fault_has_a_cause() -> None:
    assert len(OPEN) == len(TWINS) == len({twin.name for twin in TWINS}) == 12
    assert all(fault.causes for fault in OPEN)
