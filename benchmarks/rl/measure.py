"""One planted case after the other, judged; results are lines of JSON, so that it may be interrupted."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import trueline
from trueline.testing.true_causes import true_causes

RESULTS = Path(__file__).with_name("results")


def run(
    name: str,
    cases: Iterable[tuple[str, int]],
    *,
    vocabulary: int,
    steps: int,
    size: int,
    length: int,
    at_once: int = 1,
) -> None:
    """Judge (case, seed) pairs that ``results/name.jsonl`` has not yet."""
    import torch  # not needed to read results

    from trueline.testing.rollouts.loop import Loop

    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    known = {(one["case"], one["seed"]) for one in read(name)}
    for case, seed in cases:
        if (case, seed) in known:
            continue
        began = time.monotonic()
        folder = tempfile.mkdtemp()
        try:
            out = f"{folder}/run"
            Loop(case, seed, vocabulary=vocabulary, size=size, length=length, per_sampling=at_once).run(steps, out)
            result = judged(out, case)
        finally:
            shutil.rmtree(folder)
        result |= {"case": case, "seed": seed, "steps": steps, "tokens": size * length}
        result["seconds"] = round(time.monotonic() - began, 1)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(case, seed, result["found"], result["cause"], result["seconds"], flush=True)


def judged(out: str, case: str) -> dict[str, Any]:
    """What is found in the Run at ``out``, what is said of the cause of the first incident, and what rivals say."""
    from benchmarks.rl import rivals

    diagnosis = trueline.diagnose(out)
    report = diagnosis.report
    answer = diagnosis.of(0)[0] if report.incidents else None
    cause = "none"
    if answer is not None:
        named = answer.standing in ("suspected", "supported")
        cause = ("named" if answer.cause in true_causes(f"L1.{case}") else "wrong") if named else "abstained"
    by_step = rivals.verdicts(out)
    return {
        "found": sorted({finding.code for finding in report.findings if finding.severity != "info"}),
        "incidents": len(report.incidents),
        "cause": cause,
        "said": "" if answer is None else answer.cause,
        "rivals": {name: sum(map(bool, (one[name] for one in by_step.values()))) for name in rivals.NAMES},
    }


def read(name: str) -> list[dict[str, Any]]:
    """The results in ``results/name.jsonl``; none where there is no such file."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
