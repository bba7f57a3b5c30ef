"""The bench of causes: a fault of each of its models is recorded, dumped, imported and judged."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.rl import measure
from benchmarks.rl.causes import page, part
from benchmarks.rl.causes.faults import OPEN
from benchmarks.rl.causes.seen import SEEN
from benchmarks.rl.causes.seen_second import SEEN_SECOND
from benchmarks.rl.causes.seen_third import SEEN_THIRD
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
    assert (
        len(OPEN)
        == len(SEEN)
        == len(SEEN_SECOND)
        == len(SEEN_THIRD)
        == len(TWINS)
        == len({twin.name for twin in TWINS})
        == 12
    )
    assert all(fault.causes for fault in (*OPEN, *SEEN, *SEEN_SECOND))


def _result(case: str, source: str, cause: str) -> dict[str, Any]:
    facts = {"case": case, "model": "small", "seed": 0, "source": source, "cause": cause, "said": "other", "found": []}
    more = {"says": case, "causes": ["right"], "from": "", "steps": 6, "tokens": 600, "mean_abs_diff": 0.1}
    return facts | more


def test_the_page_has_both_halves_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "causes-open": [_result("one", "record", "named"), _result("two", "record", "wrong")],
        "causes-held": [_result("three", "record", "named"), _result("three", "import", "open")],
        "causes-second-held": [_result("five", "record", "named")],
        "causes-first-held": [_result("four", "record", "named"), _result("four", "record", "wrong")],
    }
    written: list[str] = []
    monkeypatch.setattr(measure, "read", lambda name: lines.get(name, []))
    monkeypatch.setattr(page, "write", lambda *parts, **_: written.extend(parts))
    page.write_page()
    text = "\n".join(written)
    assert "| recorded | open | both | 2 | 50.0 % | 0 | 1 | 0 | 2.5 % | 97.47 % | 1 of 2 |" in text
    assert "| recorded | set aside | both | 1 | 100.0 % | 0 | 0 | 0 |" in text
    assert "| imported | set aside | both | 1 | 0.0 % | 1 | 0 | 0 |" in text
    assert part.HELD in text
    assert "50.0 % named, 1 wrong of 2 Runs, recorded; 100.0 % named, 0 wrong of 1 Runs, recorded" in text
    lines["causes-held"] = []
    page.write_page()
    assert "What is set aside was not run yet." in "\n".join(written)
