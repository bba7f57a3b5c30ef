"""Lightning: a callback of its Trainer."""

from __future__ import annotations

from typing import Any, Literal

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # installed under its older name
    from pytorch_lightning.callbacks import Callback

from trueline.integrations.attached import Attached
from trueline.integrations.checkpoints import Checkpoints
from trueline.schema.errors import InputError


class TruelineCallback(Callback):
    """Watches ``trainer.fit()`` on each rank and writes a Run to ``out``; arguments as of ``trueline.watch``.

    One callback is for one training. Training that goes on from a checkpoint goes on with its Run. With
    ``checkpoints="mark"`` each checkpoint has an entry ``trueline``, which says whether it is clean as far as it was
    judged by then. The Run is then judged while it is written.
    """

    def __init__(self, out: str = "runs/latest", *, checkpoints: Literal["mark"] | None = None, **options: Any) -> None:
        if checkpoints not in (None, "mark"):
            raise InputError(
                f"checkpoints = {checkpoints!r} cannot be: Lightning asks nobody before it saves. Take 'mark'."
            )
        self._checkpoints = None if checkpoints is None else Checkpoints(out, checkpoints)
        if checkpoints is not None:
            options["on_finding"] = options.get("on_finding") or "log"
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

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""
        if self._checkpoints is not None:
            checkpoint["trueline"] = self._checkpoints.document(trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the Run; called after an exception too."""
        if self._attached is not None:
            self._attached.ends()
