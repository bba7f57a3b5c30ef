"""Facts of what the loss is computed from."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.leaves.looks import looks
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run


def outside_model(run: Run) -> tuple[str, Any] | None:
    """Tensors that need a gradient, take part in the loss, and are no parameters of the model, but for inputs."""
    look = max(looks(run), key=lambda look: (look.step, -look.rank))
    outside = look.leaves.outside
    if not outside:
        return None
    names = [leaf.name or f"one of shape {list(leaf.shape)}" for leaf in outside]
    held = sum(bool(leaf.optimizer) for leaf in outside)
    text = f"{counted(len(outside), 'tensor')} of the loss that need a gradient are no parameters of the model"
    return f"{text} ({named_some(names)}); an optimizer holds {held}", {"outside": names, "held": held}


SUBJECTS = (Subject("outside-model", "model", "tensors of the loss outside of the model", outside_model),)
