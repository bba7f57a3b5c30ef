"""Accelerate: a tracker, which ``Accelerator(log_with=…)`` takes."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from trueline.integrations.attached import Attached


class TruelineTracker(GeneralTracker):
    """Watches training on each rank and writes a Run to ``out``; arguments as of ``trueline.watch``. To be made before
    ``prepare``. ``accelerator.end_training()`` closes the Run on the main process; the others close it at their exit.
    """

    name = "trueline"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, out: str = "runs/latest", **options: Any) -> None:
        self._attached = Attached(out, **options)
        super().__init__(_blank=True)

    @property
    def tracker(self) -> Attached:
        """What watches."""
        return self._attached

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing: settings are seen where they are used."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Nothing: losses and norms are measured on each rank, before they are averaged."""

    def finish(self) -> None:
        """Close the Run."""
        self._attached.ends()
