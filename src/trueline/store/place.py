"""Where a job writes its Run, or its Runs where groups of ranks average apart from each other."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trueline.schema.errors import InputError
from trueline.schema.start import Job, Start
from trueline.store.attempts import next_start
from trueline.store.writer import RunWriter


@dataclass(frozen=True)
class Place:
    """The Run of rank 0 is at ``out``; that of a team led by another rank has ``.ranks-<lead>`` behind."""

    out: str | os.PathLike[str]
    overwrite: bool = False
    resume: bool = False

    def open(self, *, rank: int, lead: int, job: Job, start: Start | None) -> RunWriter:
        """This rank's writer. The lead goes first, without a ``start``: it creates the Run, or finds out how the job
        goes on with it, and the ``start`` of its writer is for the others. Raises as ``RunWriter`` and ``next_start``.
        """
        if self.overwrite and self.resume:
            raise InputError("overwrite and resume contradict each other. Pass one of them.")
        if job.step is not None and job.step < 0:
            raise InputError(f"step={job.step} is given for the first step, which must be 0 or more.")
        path = os.fspath(self.out) if lead == 0 else f"{os.fspath(self.out)}.ranks-{lead}"
        if start is None:
            start = next_start(path, job, rank=rank) if self.resume else Start(step=job.step or 0)
        leads = rank == lead
        return RunWriter(path, rank=rank, overwrite=self.overwrite and leads, creates=leads, start=start)
