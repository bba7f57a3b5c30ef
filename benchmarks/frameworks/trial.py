"""What is shown of one mode of one framework, each as '' where it is right or else what was seen instead."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.frameworks import truth
from benchmarks.frameworks.job import BAD, FAULTS, WORLD
from benchmarks.frameworks.ranks import launched, trained

CHECKED_STEPS = 4
ALL = {"every": 1, "exact": True}
HOW = {
    "no sampler": {"duplicate-data", "shard-overlap", "sample-repeats"},
    "another data seed": {"shard-overlap", "rank-config-differs"},
}
"""Findings that name a fault, where it is not any that names the bad rank alone."""


def cells(trial: Trial, *, part: str = "") -> Iterator[tuple[str, str]]:
    """(what, '' or what was seen instead) of every part, or of one; one that fails does not end the others."""
    parts: dict[str, Callable[[], str]] = {
        "zero-edit": trial.zero_edit,
        "bitwise": trial.bitwise,
        "truth": trial.truth,
        "healthy": trial.healthy,
        **{fault: lambda fault=fault: trial.found(fault) for fault in FAULTS},
        "record, compare": trial.compared,
    }
    for what, show in parts.items():
        if (part and part != what) or what not in getattr(trial.module, "PARTS", parts):
            continue
        try:
            yield what, show()
        except Exception as error:
            yield what, f"{type(error).__name__}: {error}"[-1500:]


class Trial:
    """Trains the ``mode`` of the framework in module ``name`` below ``place``."""

    def __init__(self, name: str, mode: str, place: Path) -> None:
        self.name, self.mode, self.place = name, mode, place
        self.module: Any = importlib.import_module(f"benchmarks.frameworks.jobs.{name}")
        self.said: dict[str, Any] = {}
        """Of the healthy training: the manifest's notes, and which checks ran."""

    def zero_edit(self) -> str:
        """``trueline run --`` before the launcher ends as without, and has watched all steps of all ranks."""
        import trueline

        run, out = self.place / "launched", self.place / "launched-out"
        done = launched(self.name, self.mode, out, {"steps": 8}, watching=["--out", str(run)])
        said = done.stderr.strip().splitlines()[-1:]
        if done.returncode:
            return f"exit code {done.returncode}: {done.stderr[-1500:]}"
        if not run.exists():
            return f"no Run: {said}"
        watching = trueline.open_run(run)
        steps = sorted({(row["rank"], row["step"]) for row in watching.table().to_pylist()})
        if steps != [(rank, step) for rank in range(WORLD) for step in range(8)]:
            return f"(rank, step) seen: {steps}"
        ends = [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(WORLD)]
        bare = trained(self.name, self.mode, self.place / "unlaunched", steps=8)
        return "" if ends == bare else f"not the weights of an unwatched training: {ends}, {bare}"

    def bitwise(self) -> str:
        """The same weights, watched or not."""
        bare = trained(self.name, self.mode, self.place / "bare", steps=12)
        plan = ALL | {"params_every": 1, "matrix_every": 1}
        watched = trained(self.name, self.mode, self.place / "watched", run=self.place / "bitwise", plan=plan, steps=12)
        return "" if bare == watched else f"{bare} unwatched, {watched} watched"

    def truth(self) -> str:
        """Losses, gradients, samples and learning rate are those of plain code."""
        import trueline

        run, kept = self.place / "truth", self.place / "kept"
        plan = ALL | {"matrix_every": 1}
        trained(self.name, self.mode, kept, run=run, plan=plan, steps=CHECKED_STEPS, keeps=True)
        of = getattr(self.module, "truth", None)
        wrong = truth.differences(trueline.open_run(run), kept, steps=CHECKED_STEPS, mode=self.mode, truth=of)
        return "; ".join(wrong[:3]) + (f"; {len(wrong) - 3} more" if len(wrong) > 3 else "")

    def healthy(self) -> str:
        """No finding about a healthy training; ``said`` is filled."""
        import trueline

        report = self._checked("")
        self.said = {
            "notes": trueline.open_run(self.place / "run-healthy").manifest.notes,
            "run": list(report.checks_run),
            "not run": {each.check: each.why for each in report.checks_not_run},
        }
        wrong = [finding for finding in report.findings if finding.is_grave]
        return "; ".join(f"{finding.code} {list(finding.ranks)}: {finding.claim}" for finding in wrong)

    def found(self, fault: str) -> str:
        """The planted fault is found on the right rank, and no other rank is named alone."""
        findings = [finding for finding in self._checked(fault).findings if finding.is_grave]
        said = "; ".join(f"{finding.code} {list(finding.ranks)}" for finding in findings) or "no finding"
        codes = HOW.get(fault)
        if codes is not None and any(finding.code in codes for finding in findings):
            return ""
        alone = {tuple(finding.ranks) for finding in findings if len(finding.ranks) == 1}
        return "" if alone == {(BAD,)} else said

    def compared(self) -> str:
        """Steps are recorded, two healthy trainings agree, and of a faulty one the difference is found."""
        import trueline

        runs = [self._recorded("record-1", ""), self._recorded("record-2", ""), self._recorded("record-3", FAULTS[0])]
        same, other = trueline.compare(runs[1], runs[0]), trueline.compare(runs[2], runs[0])
        if same.exit_code != 0 or not len(same.rows):
            return f"two equal trainings: exit code {same.exit_code}, {len(same.rows)} values"
        return "" if other.exit_code == 1 else f"loss x 1.5 on a rank: exit code {other.exit_code}"

    def _checked(self, fault: str) -> Any:
        import trueline

        run = self.place / f"run-{fault or 'healthy'}"
        trained(self.name, self.mode, self.place / f"out-{fault}", run=run, plan={"every": 1}, fault=fault)
        return trueline.check(run)

    def _recorded(self, name: str, fault: str) -> Path:
        run, plan = self.place / name, {"preset": "mix", "steps": [2, 4]}
        trained(self.name, self.mode, self.place / f"{name}-out", run=run, plan=plan, steps=5, fault=fault)
        return run
