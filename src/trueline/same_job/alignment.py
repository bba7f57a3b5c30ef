"""Switches that must be off in both jobs before their rollouts can be compared one by one.

They order, pack or divide sequences by chance, or by their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.same_job.settings import detect_framework, is_off, is_open

SWITCHES = frozenset(
    (
        *(
            "shuffle",
            "shuffle_dataset",
            "shuffle_prompts",
            "balance_batch",
            "use_dynamic_bsz",
            "use_dynamic_batch_size",
        ),
        *("rmpad", "use_rmpad", "use_remove_padding"),
    )
)
"""Last parts of options: verl (data.shuffle, trainer.balance_batch, actor.use_dynamic_bsz, model.use_remove_padding),
TRL (shuffle_dataset), slime (use_dynamic_batch_size) and older names.
"""

Sources = Mapping[str, Mapping[str, Any]]


def switched_on(sources: Sources) -> list[str]:
    """Sorted switches that are on in a job's configurations."""
    entries = ((option, value) for options in sources.values() for option, value in options.items())
    switches = (
        (option, value) for option, value in entries if option.rpartition(".")[2] in SWITCHES and not is_open(value)
    )
    return sorted({option for option, value in switches if not is_off(value)})


def unaligned_switches(run: Sources, ref: Sources, *, rollouts: bool) -> list[str]:
    """Sentence on switches that are on in two jobs of reinforcement learning (``rollouts``: they recorded some).

    The list is empty where all are off, or for jobs of another kind.
    """
    of_verl = all("verl" in map(detect_framework, side.values()) for side in (run, ref))
    sides = [(side, switches) for side, options in (("run", run), ("ref", ref)) if (switches := switched_on(options))]
    if not sides or not (rollouts or of_verl):
        return []
    sides_text = "; ".join(f"{', '.join(switches)} ({side})" for side, switches in sides)
    return [f"Rollouts can be compared one by one only where this is off on both sides: {sides_text}."]
