"""One planted case after the other, judged; results are lines of JSON, so that it may be interrupted."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gallery.independence import true_causes

import trueline

RESULTS = Path(__file__).with_name("results")

Train = Callable[[str, int, str], None]
"""Runs a case with a seed and records it into a Run at a path."""


def run(name: str, cases: Iterable[tuple[str, int]], train: Train, **facts: Any) -> None:
    """Judge (case, seed) pairs that ``results/name.jsonl`` has not yet; ``facts`` are kept with each."""
    import torch  # not needed to read results

    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    known = {(one["case"], one["seed"]) for one in read(name)}
    for case, seed in cases:
        if (case, seed) in known:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            train(case, seed, f"{folder}/run")
            result = {"case": case, "seed": seed, **facts, **judged(f"{folder}/run", case)}
        result["seconds"] = round(time.monotonic() - began, 1)
        with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(name, case, seed, result["found"], result["cause"], result["seconds"], flush=True)


def judged(out: str, case: str) -> dict[str, Any]:
    """What is found in the Run at ``out``, what is said of the cause of the first incident, what rivals say, and how
    far the two sides are apart: mean |d| over all tokens.
    """
    from benchmarks.rl import rivals

    diagnosis = trueline.diagnose(out)
    report = diagnosis.report
    answer = diagnosis.of(0)[0] if report.incidents else None
    cause = "none"
    if answer is not None:
        named = answer.standing in ("suspected", "supported")
        cause = ("named" if answer.cause in true_causes(f"L1.{case}") else "wrong") if named else "abstained"
    warned = [finding for finding in report.findings if finding.is_grave]
    of_steps = rivals.by_step(out)
    return {
        "found": sorted({finding.code for finding in warned}),
        "incidents": len(report.incidents),
        "cause": cause,
        "said": "" if answer is None else answer.cause,
        "crossed": min(
            (each.evidence["crossed_step"] for each in warned if "crossed_step" in each.evidence), default=None
        ),
        "steps": len(of_steps),
        "tokens": sum(each["tokens"] for each in of_steps),
        "mean_abs_diff": sum(each["abs_diff"] * each["tokens"] for each in of_steps)
        / sum(each["tokens"] for each in of_steps),
        "rivals": rivals.alarms(of_steps),
    }


def read(name: str) -> list[dict[str, Any]]:
    """The results in ``results/name.jsonl``; none where there is no such file."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
