"""The line that `trueline run` prints when the command has ended: what was watched, or that nothing was."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from trueline.capture.child_env import path_of_restart, path_of_rollouts
from trueline.judge.no_update import merge_no_update
from trueline.schema.finding import NO_UPDATE, WATCH_DEGRADED
from trueline.schema.text.words import counted, named_or_ends

if TYPE_CHECKING:
    from trueline.cli.foreground import Ended
    from trueline.store.reader import Run

Stamps = dict[str, tuple[int, int]]

_NO_RUN = (
    "NOTHING WAS WATCHED: no optimizer step seen in any process of the command, so there is no Run at '{out}'. "
    "Watching begins as a model runs that an optimizer of torch.optim trains."
)
_AS_BEFORE = (
    "NOTHING WAS WATCHED: the Run at '{out}' is as it was before the command, and there is no other. Read what the "
    "command's processes said, or pass another --out."
)


def stamps(run_path: str) -> Stamps:
    """By place, what identifies a manifest: of the Run at ``run_path``, and of those that restarts, and a process that
    records rollouts alone, left next to it.
    """
    stamp_by_path: Stamps = {}
    restarts = sorted(glob.glob(path_of_restart(glob.escape(run_path), "*")))
    rollouts = sorted(glob.glob(f"{glob.escape(path_of_rollouts(run_path))}*"))
    for path in (run_path, *restarts, *rollouts):
        try:
            manifest = os.stat(Path(path) / "manifest.json")
        except OSError:
            continue
        stamp_by_path[path] = (manifest.st_mtime_ns, manifest.st_ino)
    return stamp_by_path


def written(run_path: str, *, before: Stamps) -> list[str]:
    """The Runs that the command wrote: ``run_path``, and those next to it; ``before`` is what was there."""
    return [path for path, now in stamps(run_path).items() if before.get(path) != now]


def keep_end(run_path: str, ended: Ended, *, before: Stamps) -> None:
    """Write how a command ended that did not end well into the Runs that it left and none of whose ranks closed: they
    cannot know. What cannot be written is left out.
    """
    from trueline.judge.rank_endings import all_killed
    from trueline.schema.errors import TruelineError
    from trueline.schema.files.run_manifest import CommandEnd
    from trueline.store import manifest
    from trueline.store.reader import Run

    if ended.status == 0:
        return
    end = CommandEnd(status=os.waitstatus_to_exitcode(ended.status), passed_on=ended.passed_on)
    with contextlib.suppress(OSError, TruelineError):
        runs = [Run(path) for path in written(run_path, before=before)]
        for run in [
            run_of_job for first in runs for run_of_job in (first, *map(Run, (*first.groups, *first.models.values())))
        ]:
            if all_killed(run):
                manifest.keep_end(run.path, end)


def watched(run_path: str, *, before: Stamps, unseen: str = "", status: int = 0, began: bool = False) -> str:
    """A line on what the command left at ``run_path``, and the next command; ``before`` is what was there already,
    ``unseen`` why a process of the command was not watched, ``status`` what ``os.waitpid`` gave at the command's end,
    ``began`` whether one of its processes was.
    """
    refused = bool(unseen) and not began
    paths = [] if refused else written(run_path, before=before)  # what changed is then another job's
    if paths:
        return " ".join(_run(path, unseen) for path in paths)
    if unseen:
        return f"NOTHING WAS WATCHED: {unseen}{_early_end(status)}"
    if began and not Path(run_path).is_dir():
        return (
            f"THE RUN IS GONE from '{run_path}': it was written there, and moved or removed since. Next, with the "
            f"place where it is now: trueline check RUN{_early_end(status)}"
        )
    if run_path in before:
        return f"{_AS_BEFORE.format(out=run_path)}{_early_end(status)}"
    if (Path(run_path) / "env").is_dir():
        return (
            f"the ranks of this machine wrote to '{run_path}', and rank 0 elsewhere. Next, where all machines' disks "
            f"can be read: trueline collect {shlex.quote(run_path)} … DST"
        )
    return f"{_NO_RUN.format(out=run_path)}{_early_end(status)}"


def _early_end(status: int) -> str:
    """A sentence on a command that did not end well; '' for one that did."""
    code = os.waitstatus_to_exitcode(status)
    by_signal = -code if code < 0 else code - 128  # as shells, `timeout` and torchrun tell of it
    if by_signal in {*signal.Signals}:
        return f" The command, or what it started, was ended by {signal.Signals(by_signal).name}."
    return f" The command ended with exit code {code}." if code else ""


def _run(run_path: str, unseen: str = "") -> str:
    from trueline.schema.errors import TruelineError
    from trueline.store.reader import Run

    try:
        run = Run(run_path)
        models = [run, *(Run(path) for path in run.models.values())]
        lines = [_model(model) for model in models]
    except TruelineError as error:
        return str(error)
    next_ = f"Run: {run_path}{_groups_text(run)}. Next: trueline check {shlex.quote(run_path)}"
    rollouts = run.kept("rollouts")
    if rollouts and not len(run.steps):
        return f"recorded {counted(rollouts.table(['step']).num_rows, 'sequence')} of rollouts. {next_}"
    if not any(len(model.steps) for model in models):
        stopped = next((finding.claim for finding in run.live_findings if finding.code == WATCH_DEGRADED), "")
        if stopped or unseen:
            return f"NOTHING WAS RECORDED: {stopped or unseen} {next_}"
        untrained = [finding for finding in merge_no_update(run.live_findings) if finding.code == NO_UPDATE]
        if untrained:
            how = ", ".join([counted(run.world_size, "rank"), *filter(None, [run.manifest.adapter])])
            return f"NO OPTIMIZER STEP SEEN: {untrained[0].claim.rstrip('.')} ({how}). {next_}"
        return f"NO OPTIMIZER STEP SEEN, so the Run is empty: {'; '.join(lines)}. {next_}"
    return f"watched {'; '.join(lines)}. {next_}"


def _groups_text(run: Run) -> str:
    """`` and run.ranks-1 beside it``: the directories of further groups of ranks; "" where there are none."""
    return f" and {named_or_ends([os.path.basename(path) for path in run.groups])} beside it" if run.groups else ""


def _model(run: Run) -> str:
    from trueline.judge.watching_cost import watching_cost
    from trueline.store.reader import Run

    groups = [run, *map(Run, run.groups)]
    how = f"{run.manifest.adapter or 'unknown adapter'}, {counted(sum(len(group.ranks) for group in groups), 'rank')}"
    how += f" in {counted(len(groups), 'group')}" if len(groups) > 1 else ""
    sampled = int(run.pivot("grad_norm")[1].any(axis=1).sum()) if len(run.steps) else 0
    gradients = f"gradients at {sampled}" if sampled else "no gradients"
    cost = watching_cost(run)
    took = f"; watching took {cost.words}" if cost is not None and cost.is_over else ""
    return f"{run.manifest.model or 'a model'} ({how}): {counted(len(run.steps), 'step')}, {gradients}{took}"
