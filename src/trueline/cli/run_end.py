"""What `trueline run` says when the command has ended: what was watched, or that nothing was."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueline.store.reader import Run

Stamp = tuple[int, int] | None

_NOTHING = (
    "NOTHING WAS WATCHED: no optimizer step seen in any process of the command, so there is no Run at '{out}'. "
    "Watching begins as a model runs that an optimizer of torch.optim trains."
)


def stamp(out: str) -> Stamp:
    """What tells one manifest of the Run at ``out`` from another; None without."""
    try:
        found = os.stat(Path(out) / "manifest.json")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def watched(out: str, *, before: Stamp) -> str:
    """What the command left at ``out``, in one line, and the next command; ``before`` is what was there already."""
    from trueline.schema.errors import TruelineError
    from trueline.store.reader import Run

    now = stamp(out)
    if now is None and (Path(out) / "env").is_dir():
        return f"the ranks of this machine wrote to '{out}'; the manifest of the Run is where rank 0 wrote."
    if now in (None, before):
        return _NOTHING.format(out=out)
    try:
        run = Run(out)
        models = [run, *(Run(path) for path in run.models.values())]
        told = [_model(each) for each in models]
    except TruelineError as error:
        return str(error)
    next_ = f"Run: {out}. Next: trueline check {shlex.quote(out)}"
    if not any(len(each.steps) for each in models):
        return f"NO OPTIMIZER STEP SEEN, so the Run is empty: {'; '.join(told)}. {next_}"
    return f"watched {'; '.join(told)}. {next_}"


def _model(run: Run) -> str:
    ranks = len(run.ranks)
    how = f"{run.manifest.adapter or 'unknown adapter'}, {ranks} rank{'' if ranks == 1 else 's'}"
    steps = len(run.steps)
    sampled = int(run.pivot("grad_norm")[1].any(axis=1).sum()) if steps else 0
    gradients = f"gradients at {sampled}" if sampled else "no gradients"
    return f"{run.manifest.model or 'a model'} ({how}): {steps} step{'' if steps == 1 else 's'}, {gradients}"
