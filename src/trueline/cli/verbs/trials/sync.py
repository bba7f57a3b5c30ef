"""`trueline trial sync`: whether a finding is a race, of memory, or neither."""

from __future__ import annotations

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
    "confirmed": "the finding depends on order in time or on memory, as told below",
    "excluded": "it is neither a race between streams or threads nor memory that is read too early or too late",
    "undecided": "whether it is a race or of memory cannot be told",
}


def command(
    run: RunOf,
    words: Words = None,
    code: Code = None,
    error: Error = ERROR,
    runs: Most = MOST,
    steps: Steps = None,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/sync",
    seed: Seed = 0,
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command with every operation waited for, slowed down, and with memory filled by a pattern, and say
    whether a finding is a race, memory that is read before it is written or after it is freed, or neither.

    confirmed: one of these; excluded: neither. Exit code 0: one of these; 3: undecided.

    Example: trueline trial sync runs/bad -- torchrun --nproc-per-node 2 train.py
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.Asked("sync", run, words or (), code, error, runs, steps, timeout, out, seed, keep)
    prepared = start.sync(asked)
    run_and_print(asked, prepared, means=_MEANS, dry_run=dry_run, json=json)
