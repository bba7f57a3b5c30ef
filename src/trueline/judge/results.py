"""All that is concluded and measured of a Run, for a page to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trueline.judge.check_run import CheckReport, check
from trueline.judge.series.dispersion import ChanceBand, Dispersion, chance_band, dispersion
from trueline.store.reader import Run

_BANDED = ("loss_std", "norm_std", "norm_cv")


@dataclass(frozen=True, slots=True)
class RunResults:
    """Report of the checks on a Run, the dispersion of its workers at each step, and the bands of chance that are
    known, by the name of a field of ``dispersion``.
    """

    report: CheckReport
    dispersion: Dispersion
    bands: Mapping[str, ChanceBand]


def results_of(path: str, ref: str | None = None) -> RunResults:
    """The results of the Run at ``path``, with ``ref`` beside a reference. Raises ``RunError``, ``InputError``."""
    run = Run(path)
    report, dispersions = check(run, ref=ref), dispersion(run)
    assert report.causes is not None  # taken here: choosing between causes takes seconds too
    bands = {name: chance_band(getattr(dispersions, name), len(dispersions.ranks)) for name in _BANDED}
    return RunResults(report, dispersions, {name: band for name, band in bands.items() if band is not None})
