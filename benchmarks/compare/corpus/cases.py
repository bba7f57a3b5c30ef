"""The cases of the corpus, and what becomes of one: recorded, compared with its reference, judged."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.corpus.kit import FAMILIES, FAULTS, HEALTHY, Fault, Healthy, Training, half_of, nothing
from benchmarks.compare.corpus.recording import Setting, record
from benchmarks.compare.corpus.verdict import SILENT, UNDECIDED, Names, judged, said


@dataclass(frozen=True)
class Case:
    """A fault or a healthy way, one of the two, as it is recorded with ``setting``."""

    key: str
    family: str
    kind: str
    """The mechanism of a fault; '' of what is healthy."""
    half: str
    setting: Setting
    fault: Fault | None = None
    healthy: Healthy | None = None

    @property
    def change(self) -> Callable[[Training], object]:
        """What makes the run differ from its reference."""
        return self.fault.plant if self.fault is not None else self.healthy.change

    def facts(self) -> dict[str, Any]:
        """What a result says of its case."""
        truth = None if self.fault is None else self.fault.truth
        return {
            "key": self.key,
            "family": self.family,
            "kind": self.kind,
            "half": self.half,
            "setting": self.setting.name,
            "truth": truth and [*truth.phases, *truth.at, *truth.codes, truth.word],
        }


def all_cases(setting: Setting) -> list[Case]:
    """Those that can be recorded with ``setting``, family by family, so that a reference serves its cases in turn."""
    has = {setting.dtype, "compiled" if setting.compiled else "eager", "narrow" if setting.dtype == "bf16" else "wide"}
    faults = [
        Case(key, each.family, each.kind, half_of(key), setting, fault=each)
        for key, each in FAULTS.items()
        if each.needs <= has
    ]
    healthy = [
        Case(key, each.family, "", half_of(key), setting, healthy=each)
        for key, each in HEALTHY.items()
        if each.needs <= has
    ]
    order = list(FAMILIES)
    return sorted([*faults, *healthy], key=lambda case: order.index(case.family))


def run_reference(family: str, setting: Setting, work: Path) -> dict[str, Any]:
    """Record the reference of ``family`` into ``work``."""
    record(_reference(family, work), FAMILIES[family], nothing, setting)
    return {"key": family}


def _reference(family: str, work: Path) -> Path:
    return work / f"ref-{family}"


def run_case(case: Case, setting: Setting, work: Path) -> dict[str, Any]:
    """The result of a case. What is silent is recorded again with its values, to see whether it differs at all."""
    began = time.monotonic()
    result = {**case.facts(), **_compared(case, setting, work)}
    if case.fault is not None and result["verdict"] == SILENT and setting.depth != "tensor":
        whole = replace(setting, depth="tensor")
        with tempfile.TemporaryDirectory(dir=work) as folder:
            run_reference(case.family, whole, Path(folder))
            result["at_tensor"] = _compared(case, whole, Path(folder))
    return {**result, "seconds": round(time.monotonic() - began, 2)}


def _compared(case: Case, setting: Setting, work: Path) -> dict[str, Any]:
    run = Path(tempfile.mkdtemp(dir=work)) / "run"
    try:
        trained = record(run, FAMILIES[case.family], case.change, setting)
        answer = said(run, _reference(case.family, work), "" if case.healthy is None else case.healthy.names)
    finally:
        shutil.rmtree(run.parent)
    return verdict_of(case, {**answer, "names": Names.of(trained.model).to_json()})


def verdict_of(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    """``result`` with its verdict, by the truth as it is now: a file may have results of before it was corrected."""
    if "error" in result:
        return result
    if case.fault is None:
        right = 3 if case.healthy is not None and case.healthy.undecided else 0
        return {**result, "verdict": {3: UNDECIDED, right: SILENT}.get(result["exit"], "alarm")}
    plan = "compiled" if case.setting.compiled else case.setting.plan
    verdict = judged(result, case.fault.truth, plan, Names.from_json(result["names"]))
    return {**result, "verdict": verdict, "right_code": result["code"] in case.fault.truth.codes}
