"""`trueline trial phases`: which phase of a step, and which half of the model, a finding needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the finding needs what is named below",
    "excluded": "",
    "undecided": "which phase of a step the finding needs cannot be told",
}


@verb("phases", _MEANS)
def command() -> Mapping[str, Any]:
    """Run a training command with its weights fixed, with plain updates, with halves of the model frozen, and with the
    model or halves of it computed elsewhere, as far as needed, and say which phase of a step a finding needs.

    confirmed: code (whatever moves and wherever it is computed), kernels, the update, or weights that move, with the
    half. Exit code 0: one of these; 3: undecided.

    Example: trueline trial phases runs/bad -- torchrun --nproc-per-node 2 train.py
    """
    return {}
