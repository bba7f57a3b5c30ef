"""Switches that have to be off on both sides before rollouts of two jobs can be compared one by one: they order, pack
or divide sequences by chance, or by their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.same_job.settings import framework_of, is_off, is_open

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
    """The options of a job's configurations that are on, sorted."""
    named = ((option, value) for options in sources.values() for option, value in options.items())
    known = ((option, value) for option, value in named if option.rpartition(".")[2] in SWITCHES and not is_open(value))
    return sorted({option for option, value in known if not is_off(value)})


def unaligned(mine: Sources, theirs: Sources, *, rollouts: bool) -> list[str]:
    """A sentence on what is on in two jobs of reinforcement learning (``rollouts``: they recorded some); none where all
    is off, or where they are of another kind.
    """
    of_verl = all("verl" in map(framework_of, side.values()) for side in (mine, theirs))
    on = [(side, found) for side, options in (("run", mine), ("ref", theirs)) if (found := switched_on(options))]
    if not on or not (rollouts or of_verl):
        return []
    named = "; ".join(f"{', '.join(found)} ({side})" for side, found in on)
    return [f"Rollouts can be compared one by one only where this is off on both sides: {named}."]
