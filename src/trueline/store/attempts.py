"""Let a restarted job continue the Run of its earlier start; ``store/timeline.py`` says which steps are whose."""

from __future__ import annotations

import datetime
import os

from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import ResumeError, RunError, RunExistsError
from trueline.schema.files.run_lock import require_ended
from trueline.schema.files.run_manifest import SCHEMA_VERSION, Attempt, Manifest, PlanRevision
from trueline.schema.files.start import Job, Start
from trueline.schema.text.documents import decode
from trueline.store import file_names
from trueline.store.log.earlier_start import last_step
from trueline.store.manifest import open_manifest

_ELSEWHERE = "Pass another --out, and it begins a Run of its own."


def next_start(path: str | os.PathLike[str], job: Job, *, rank: int) -> Start:
    """How ``job`` goes on with the Run at the local ``path``, of which ``rank`` is the first to write; a first start
    where there is nothing yet.

    Steps go on where ``job.step`` says, else where the optimizer's own count does, else after the last recorded one.
    Raises ``ResumeError`` for what is no Run, cannot be written by this version, is still being written by another
    process of this machine, or is of another job: of other parameters, or another number of workers.
    """
    path = os.fspath(path)
    if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
        return Start(step=job.step or 0)
    try:
        manifest = open_manifest(LocalFileSystem(), path, path)
        require_ended(path, proven=True)  # of another machine it may have been killed just now, and started again here
    except (RunError, RunExistsError) as error:
        raise ResumeError(str(error)) from None
    if manifest.started_at or manifest.source:  # otherwise the start before ended before it had described itself
        _require_same_job(path, manifest, job, rank=rank)
    earlier = manifest.attempts or [Attempt(started_at=manifest.started_at, plan=manifest.plan)]
    last = last_step(path, rank)
    step = _first_step(earlier[-1], job, last=last)
    begins = Attempt(step=step, started_at=_now(), updates=job.updates, plan=job.plan)
    plans = _plans(manifest, begins)
    notes = [*manifest.notes, _note(begins, number=len(earlier) + 1, last=last)]
    return Start(
        attempt=len(earlier),
        step=step,
        revision=max((entry.revision for entry in [*manifest.plans, *plans]), default=0),
        keeps_plan=job.plan == earlier[-1].plan,
        manifest=manifest.model_copy(
            update={"attempts": [*earlier, begins], "plans": plans, "notes": notes, "ended": None}
        ),
    )


def _require_same_job(path: str, manifest: Manifest, job: Job, *, rank: int) -> None:
    if manifest.source:
        raise ResumeError(f"'{path}' was imported, not recorded, so no job can go on with it. {_ELSEWHERE}")
    if manifest.schema_version != SCHEMA_VERSION:
        raise ResumeError(
            f"Run '{path}' has schema version {manifest.schema_version}, and this Trueline writes {SCHEMA_VERSION}, so "
            f"it cannot go on with it. {_ELSEWHERE}"
        )
    for label, before, now in (
        ("workers", manifest.world_size, job.world_size),
        ("adapter", manifest.adapter, job.adapter),
    ):
        if before != now:
            raise ResumeError(
                f"Run '{path}' has {label} {before}, and this start of the job has {now}: one Run cannot hold both. "
                f"{_ELSEWHERE}"
            )
    before = _params_of(path, rank)
    if before and set(before) != set(job.params):
        only = sorted(set(before) ^ set(job.params))
        where = "the Run" if only[0] in before else "this model"
        raise ResumeError(
            f"Run '{path}' watched {len(before)} parameters, and this start of the job has {len(job.params)}: "
            f"'{only[0]}' is only in {where}. {_ELSEWHERE}"
        )


def _params_of(path: str, rank: int) -> list[str]:
    """The parameters that ``rank`` watched; empty where it did not say, or what it said is damaged."""
    try:
        with open(os.path.join(path, file_names.ENV_DIR, file_names.env_name(rank)), "rb") as file:
            return [str(name) for name in decode(file.read())[0]["params"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _first_step(before: Attempt, job: Job, *, last: int | None) -> int:
    if job.step is not None:
        return job.step
    if job.updates is not None and before.updates is not None and before.step + job.updates >= before.updates:
        return before.step + job.updates - before.updates
    return before.step if last is None else last + 1


def _plans(manifest: Manifest, begins: Attempt) -> list[PlanRevision]:
    """The changes of the Plan that hold for the steps before ``begins``, and its own where it is another."""
    changes_before = [entry for entry in manifest.plans if entry.step < begins.step]
    in_force = changes_before[-1].plan if changes_before else manifest.plan
    if begins.plan == in_force:
        return changes_before
    latest = max((entry.revision for entry in manifest.plans), default=0)
    return [*changes_before, PlanRevision(revision=latest + 1, step=begins.step, plan=begins.plan)]


def _note(begins: Attempt, *, number: int, last: int | None) -> str:
    goes_on = f"start {number} of the job, at {begins.started_at}, goes on from step {begins.step}"
    if last is None or last < begins.step:
        return f"{goes_on}."
    return f"{goes_on}; what the start before recorded from there on, up to step {last}, is left out."


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
