"""Hugging Face Trainer, and the trainers of TRL, which are made of it."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trueline.integrations.attached import Attached
from trueline.integrations.checkpoints import Checkpoints, Way
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()


class TruelineCallback(TrainerCallback):
    """Watches ``trainer.train()`` on each rank and writes a Run to ``out``; arguments as of ``trueline.watch``.

    One callback is for one training. Training that goes on from a checkpoint goes on with its Run. With
    ``checkpoints="mark"`` each checkpoint has a file ``trueline.json``, which says whether it is clean; with "hold"
    none is saved while an error is open, either. Both judge the Run while it is written.
    """

    def __init__(self, out: str = "runs/latest", *, checkpoints: Way | None = None, **options: Any) -> None:
        self._checkpoints = None if checkpoints is None else Checkpoints(out, checkpoints)
        if checkpoints is not None:
            options["on_finding"] = options.get("on_finding") or "log"
        self._attached = Attached(out, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step that training goes on from is known, and an optimizer that the user made."""
        optimizer = kwargs.get("optimizer")
        self._attached.begins([] if optimizer is None else [optimizer], step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is asked for, or not."""
        if self._checkpoints is None:
            return
        if control.should_save and self._checkpoints.holds and self._checkpoints.is_held():
            control.should_save = False
            if state.is_world_process_zero:
                _log.warning("trueline: no checkpoint at step %d: an error is open.", state.global_step)
        if state.is_world_process_zero:
            self._checkpoints.mark()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """As after a step."""
        self.on_step_end(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was saved."""
        if self._checkpoints is not None and state.is_world_process_zero:
            name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self._checkpoints.saved(state.global_step, os.path.join(args.output_dir, name))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the Run, and say of the last checkpoints what the last look found."""
        self._attached.ends()
        if self._checkpoints is not None and state.is_world_process_zero:
            self._checkpoints.mark(last=True)
