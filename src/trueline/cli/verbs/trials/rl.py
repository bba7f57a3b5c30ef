"""`trueline trial rl`: why rollout engine and trainer disagree."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import (
    ERROR,
    MOST,
    TIMEOUT,
    Code,
    DryRun,
    Error,
    Keep,
    Most,
    Out,
    RunOf,
    Seed,
    Steps,
    Timeout,
    Words,
)

_MEANS = {
    "confirmed": "engine and trainer disagree by what is named below",
    "excluded": "",
    "undecided": "by what engine and trainer disagree cannot be told",
}


def command(
    run: RunOf,
    words: Words = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="How an experiment is reached: NAME of lr-zero, one-token, no-cache, one-prompt or float32, then an "
            "option of the command and its value there (in capitals: a variable); may be given again.",
            metavar="NAME=OPTION=VALUE",
        ),
    ] = None,
    code: Code = None,
    error: Error = ERROR,
    runs: Most = MOST,
    steps: Steps = None,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/rl",
    seed: Seed = 0,
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training of reinforcement learning with learning rate 0, with one token a response, without a cache, with
    one sequence at a time and in float32, the cheapest first and as far as needed, and say by what rollout engine and
    trainer disagree.

    confirmed: by updates of the weights, the cache, decoding, the batch, precision, or the models themselves. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial rl runs/bad -- python grpo.py --lr 1e-5 --max-new-tokens 512
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.Asked("rl", run, words or (), code, error, runs, steps, timeout, out, seed, keep)
    prepared = start.rl(asked, own=way or ())
    run_and_print(asked, prepared, means=_MEANS, dry_run=dry_run, json=json)
