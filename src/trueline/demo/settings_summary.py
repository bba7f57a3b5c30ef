"""What was found in each setting, and what the raw curves show: as one document, for the terminal and for scripts.

Nothing is concluded here: verdicts, findings and dispersions are those of the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trueline.demo.fine_tune import Trained
from trueline.schema.finding import Finding
from trueline.schema.judged import Status, Verdict

ABOUT_CURVES = (
    "What the raw curves can tell: with a DistributedSampler every shard is a random draw, whatever the seeds, so the "
    "dispersions of s1-1, s1-2 and s1-3 are expected to look alike. What separates them is which samples each rank "
    "consumed, and that is what the checks compare. In no-sampler all ranks read the same batches under the same "
    "dropout, so that they hardly differ: no spread of the loss, cosines of 1. In loss-scale and labels one rank lies "
    "apart; whether that is more than chance is judged by how often it is the odd one out, not by how far at one step."
)


class Dispersion(Protocol):
    """How far apart workers are: one number a step, float64 [T]; NaN where it was not measured."""

    loss_std: np.ndarray
    loss_range: np.ndarray
    norm_std: np.ndarray
    cosine_mean: np.ndarray


class CheckReport(Protocol):
    """What all checks say about one Run; ``findings`` are sorted, errors first."""

    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """All of it in one sentence."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        ...


class Reading(Protocol):
    """What the report shows of one Run, as far as a demo needs it."""

    report: CheckReport
    dispersion: Dispersion


SPREADS: Mapping[str, str] = {
    "loss_std": "loss_std",
    "loss_range": "loss_range",
    "grad_norm_std": "norm_std",
    "cosine_mean": "cosine_mean",
}
"""The dispersions that are summed up, and the fields that have them. Units: loss, loss, gradient norm, cosine."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One setting after training, with what the report shows of its Run."""

    trained: Trained
    reading: Reading
    num_workers: int

    @property
    def grave(self) -> list[Finding]:
        """Errors and warnings; an info is worth knowing but is no sign that training is wrong."""
        return [finding for finding in self.reading.report.findings if finding.is_grave]

    @property
    def missed(self) -> bool:
        """Whether something was planted and nothing was found."""
        return bool(self.trained.setting.found_by) and self.reading.report.verdict.status == "clear"

    @property
    def status(self) -> Status:
        """That of the Run; 'unknown' rather than 'clear' where something was planted."""
        return "unknown" if self.missed else self.reading.report.verdict.status

    @property
    def verdict(self) -> str:
        """The verdict on the Run in words, with a second sentence where what was planted has not been found."""
        line = self.reading.report.verdict.line
        advice = f"What was planted is for {self.trained.setting.found_by} to find: it takes more --steps."
        return f"{line} {advice}" if self.missed else line

    def spread(self, key: str) -> float | None:
        """Mean over steps of the dispersion ``key`` (of ``SPREADS``); None where no step measured it."""
        values_T: np.ndarray = getattr(self.reading.dispersion, SPREADS[key])
        measured = values_T[np.isfinite(values_T)]
        return float(measured.mean()) if measured.size else None


def document(settings: Iterable[Judged], about: Mapping[str, Any]) -> dict[str, Any]:
    """The one JSON document of a demo: ``about`` (how it was run; null data: standard library), and the settings."""
    return {
        "schema": 1,
        **about,
        "settings": [_setting_document(setting) for setting in settings],
        "about_curves": ABOUT_CURVES,
    }


def advice(settings: Iterable[Judged]) -> list[tuple[str, list[str], list[str]]]:
    """What to do about each code found: the code, the settings that have it, and each piece of advice once."""
    where: dict[str, list[str]] = {}
    advice_by_code: dict[str, list[str]] = {}
    for setting in settings:
        for finding in setting.grave:
            where.setdefault(finding.code, []).append(setting.trained.setting.name)
            advice_by_code.setdefault(finding.code, []).extend(finding.next)
    return [(code, list(dict.fromkeys(where[code])), list(dict.fromkeys(advice_by_code[code]))) for code in where]


def rank_text(ranks: Sequence[int], num_workers: int) -> str:
    """``ranks`` in few letters: 'all ranks', 'rank 3' or 'ranks 0, 2'."""
    if len(ranks) == num_workers:
        return "all ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _setting_document(judged: Judged) -> dict[str, Any]:
    report = judged.reading.report.to_json()
    return {
        "setting": judged.trained.setting.name,
        "planted": judged.trained.setting.planted_text(judged.num_workers),
        "found_by": judged.trained.setting.found_by or None,
        "run": str(judged.trained.run),
        "status": judged.status,
        "verdict": judged.verdict,
        "findings": report["findings"],
        "checks_run": report["checks_run"],
        "checks_not_run": report["checks_not_run"],
        "loss": {"first": _number(judged.trained.loss_first), "last": _number(judged.trained.loss_last)},
        "dispersion": {key: judged.spread(key) for key in SPREADS},
    }


def _number(value: float) -> float | str:
    """``value``, or its name where JSON has no number for it (a loss that became NaN is a fact, not an absence)."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
