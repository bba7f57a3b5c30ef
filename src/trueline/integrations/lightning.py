"""Lightning: a callback of its Trainer."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # installed under its older name
    from pytorch_lightning.callbacks import Callback

from trueline.integrations.attached import Attached


class TruelineCallback(Callback):
    """Watches ``trainer.fit()`` on each rank and writes a Run to ``out``; arguments as of ``trueline.watch``.

    One callback is for one training. Training that goes on from a checkpoint goes on with its Run.
    """

    def __init__(self, out: str = "runs/latest", **options: Any) -> None:
        self._run_path, self._options = out, options
        self._attached: Attached | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before the strategy wraps the model; in the process that trains, which Lightning may have started."""
        if stage == "fit" and self._attached is None:
            self._attached = Attached(self._run_path, **self._options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The step that training goes on from is known, and its optimizers."""
        if self._attached is not None:
            self._attached.begins(trainer.optimizers, step=trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the Run; called after an exception too."""
        if self._attached is not None:
            self._attached.ends()
