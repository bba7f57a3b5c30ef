"""Trackio: ``trackio:PROJECT`` makes a run of its own, with the name of the Run, in that project: on this disk (in
``TRACKIO_DIR``, if that is set), or where ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` say.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from trueline.schema.finding import Finding, Severity
from trueline.schema.live import Numbers, headline, with_advice

LIBRARY = "trackio"

ALERT_LEVELS: dict[Severity, str] = {"error": "ERROR", "warning": "WARN", "confirm": "INFO", "info": "INFO"}
"""Our severities as those of Trackio."""


def open_sink(target: str, run: str) -> Trackio:
    """A run in the project ``target``."""
    import trackio

    complaints = Complaints(os.path.dirname(trackio.__file__))
    trackio_run = trackio.init(
        project=target,
        name=os.path.basename(run),
        group="trueline",
        config={"trueline_run": run},
        embed=False,
        auto_log_gpu=False,  # the training's own run has these
        auto_log_cpu=False,
        webhook_min_level=os.environ.get("TRACKIO_WEBHOOK_MIN_LEVEL") or "warn",
    )
    return Trackio(trackio_run, complaints)


class Complaints:
    """Warnings of the package in ``folder``, kept instead of shown, until ``close``: Trackio writes in a thread of its
    own, and warns where it cannot.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._texts: list[str] = []
        self._show = warnings.showwarning
        warnings.showwarning = self._hear

    def close(self) -> None:
        """Show warnings as before."""
        warnings.showwarning = self._show

    def raise_first(self) -> None:
        """Raise ``OSError`` with the first one that came since it was asked before."""
        texts, self._texts = self._texts, []
        if texts:
            raise OSError(texts[0].lstrip("* "))

    def _hear(self, message: Warning | str, category: Any, filename: str, *more: Any, **named: Any) -> None:
        if filename.startswith(self._folder):
            self._texts.append(str(message))
        else:
            self._show(message, category, filename, *more, **named)


class Trackio:
    """Logs series over the step; a finding is an alert."""

    def __init__(self, run: Any, complaints: Complaints) -> None:
        self._run, self._complaints = run, complaints

    def numbers(self, rows: Sequence[Numbers]) -> None:
        for row in rows:
            self._run.log({f"trueline/{name}": value for name, value in row.values.items()}, step=row.step)
        self._complaints.raise_first()

    def finding(self, finding: Finding) -> None:
        """An alert, which Trackio's webhook sends on, if one is set up, for errors and warnings."""
        from trackio import AlertLevel

        text = with_advice(headline(finding), finding)
        level = AlertLevel[ALERT_LEVELS[finding.severity]]
        self._run.alert(f"trueline: {finding.code}", text, level, step=finding.step_first or 0)
        self._complaints.raise_first()

    def close(self) -> None:
        """Write or send what is left. Raises ``OSError`` where that cannot be done."""
        try:
            self._run.finish()
        finally:
            self._complaints.close()
        self._complaints.raise_first()
