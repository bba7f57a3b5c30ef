"""Runs the whole demo: check the options, prepare, train, judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.demo.fine_tune import Options, Progress, prepare, require_sound, train_settings, warm_up
from trueline.demo.model import require_extra
from trueline.demo.output_folder import REPORT, claim, require_free
from trueline.demo.settings import SETTINGS
from trueline.demo.settings_summary import Judged, Reading, document

Judge = Callable[[Sequence[Path], Path], Sequence[Reading]]
"""Checks Runs, writes the page about them, and returns what it shows of each."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All settings, judged, and the same as one JSON document."""

    settings: list[Judged]
    document: dict[str, Any]


def run(options: Options, progress: Progress, *, judge: Judge) -> Outcome:
    """Train and check every setting; writes their Runs, `report.html` and `demo.json` to ``options.out``.

    ``judge`` is handed in, because what reads Runs is not ours to import. Nothing is written before data and model have
    been read. Raises ``InputError`` for what cannot be used and ``DemoError`` where a worker dies.
    """
    require_sound(options)
    require_free(options.out, overwrite=options.overwrite)
    require_extra()
    warm_up()
    material = prepare(options, progress)
    about = {
        "workers": options.workers,
        "steps": options.steps,
        "data": None if options.data is None else str(options.data),
        "model": options.model,
    }
    claim(options.out, about, overwrite=options.overwrite)
    trained = train_settings(options, material, progress)
    page = options.out / REPORT
    progress("Checking", 0, len(SETTINGS), "and writing the report")
    readings = judge([trained_setting.run for trained_setting in trained], page)
    progress("Checking", len(SETTINGS), len(SETTINGS), "done")
    settings = [
        Judged(trained_setting, reading, options.workers)
        for trained_setting, reading in zip(trained, readings, strict=True)
    ]
    paths = {"out": str(options.out), "report": str(page)}
    return Outcome(settings=settings, document=document(settings, {**paths, **about}))
