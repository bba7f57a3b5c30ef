"""The verdict says what findings say and no more, and a clean one says what was not looked at."""

import pytest

from trueline.schema.finding import Finding
from trueline.view.verdict import Verdict, headline, verdict

OVERLAP = Finding("shard-overlap", "error", "Rank 0 shares samples.", (0,), 10, 149, next=("Set one seed.",))
DRIFT = Finding("replica-drift", "error", "Rank 2 drifts.", (2,), 4, 149, next=("Broadcast.", "Look."))
SEED = Finding("rank-config-differs", "warning", "Seeds differ.", (0,), 0, None, next=("Set one seed.",))
STREAMS = Finding("rng-streams", "info", "Streams are equal.", (0, 1, 2, 3), 0, 9)


def of(
    *findings: Finding, checks: tuple[str, ...] = ("shard-overlap",), num_steps: int = 150, ranks: int = 4
) -> Verdict:
    return verdict(
        findings,
        checks_run=checks,
        checks_not_run=[("replica-drift", "no digests")],
        ranks=range(ranks),
        num_steps=num_steps,
        step_range=(0, num_steps - 1) if num_steps else None,
    )


def test_errors_say_who_since_when_and_what_to_do() -> None:
    said = of(DRIFT, OVERLAP, SEED)

    assert said.status == "out"
    assert said.line == "Out of step: ranks 0 and 2, since step 4."
    assert said.what == "Rank 2 drifts. 1 more finding below."
    assert said.next == ("Broadcast.", "Set one seed.")


def test_warnings_alone_are_only_probable() -> None:
    assert of(SEED, STREAMS).line == "Probably out of step: rank 0, since step 0."


def test_information_is_no_fault() -> None:
    assert of(STREAMS).status == "clear"
    assert of(STREAMS).ranks == ""


def test_clean_run_says_what_was_checked_and_what_was_not() -> None:
    said = of()

    assert said.line == "No fault found."
    assert "None of them judges whether one worker’s loss" in said.what
    assert said.checked == "1 check over steps 0–149 on 4 ranks: shard-overlap."
    assert said.unchecked_by_reason == [(["replica-drift"], "no digests")]


def test_clean_run_with_judged_workers_does_not_disclaim() -> None:
    assert "None of them judges" not in of(checks=("worker-loss-outlier",)).what


@pytest.mark.parametrize(("checks", "num_steps"), [((), 150), (("shard-overlap",), 0), ((), 0)])
def test_nothing_checked_is_not_called_clean(checks: tuple[str, ...], num_steps: int) -> None:
    assert of(checks=checks, num_steps=num_steps).status == "unknown"


def test_single_worker_is_said_to_have_had_no_comparison() -> None:
    assert "there were no two to compare" in of(ranks=1).what


def test_headline_over_several_runs_has_the_worst_first() -> None:
    named = [("a", of()), ("b", of(OVERLAP)), ("c", of(num_steps=0))]

    assert headline(named) == "Out of step: b; no fault found: a; cannot tell: c."


def test_headline_over_many_runs_counts_them() -> None:
    assert headline([(str(index), of(OVERLAP)) for index in range(9)]) == "Out of step: 9 Runs."
