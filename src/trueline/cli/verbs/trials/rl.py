"""`trueline trial rl`: why rollout engine and trainer disagree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "engine and trainer disagree by what is named below",
    "excluded": "",
    "undecided": "by what engine and trainer disagree cannot be told",
}


@verb("rl", _MEANS)
def command(
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="How an experiment is reached: NAME of lr-zero, one-token, no-cache, one-prompt or float32, then an "
            "option of the command and its value there (in capitals: a variable); may be given again.",
            metavar="NAME=OPTION=VALUE",
        ),
    ] = None,
) -> Mapping[str, Any]:
    """Run a training of reinforcement learning with learning rate 0, with one token a response, without a cache, with
    one sequence at a time and in float32, the cheapest first and as far as needed, and say by what rollout engine and
    trainer disagree.

    confirmed: by updates of the weights, the cache, decoding, the batch, precision, or the models themselves. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial rl runs/bad -- python grpo.py --lr 1e-5 --max-new-tokens 512
    """
    return {"way": way or ()}
