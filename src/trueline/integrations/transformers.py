"""Hugging Face Trainer, and the trainers of TRL, which are made of it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from trueline.integrations.attached import Attached


class TruelineCallback(TrainerCallback):
    """Watches ``trainer.train()`` on each rank and writes a Run to ``out``; arguments as of ``trueline.watch``.

    One callback is for one training. Training that goes on from a checkpoint goes on with its Run.
    """

    def __init__(self, out: str = "runs/latest", **options: Any) -> None:
        self._attached = Attached(out, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step that training goes on from is known, and an optimizer that the user made."""
        optimizer = kwargs.get("optimizer")
        self._attached.begins([] if optimizer is None else [optimizer], step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the Run."""
        self._attached.ends()
