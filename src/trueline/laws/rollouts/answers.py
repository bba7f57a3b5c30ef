"""What is said of rollouts beside findings of one Run: of what could not be judged, and of a reference."""

from __future__ import annotations

from trueline.laws.rollouts import rows, sync_rows
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run


def left_out_notes(run: Run) -> list[str]:
    """What of rollouts, and of the weights that sampled them, could not be judged."""
    return [*rows.unjudged_text(run), *sync_rows.left_out(run)]


def reference_findings(run: Run, ref: Run) -> tuple[list[Finding], list[str]]:
    """What the first tokens of greedy responses say of two Runs with rollouts, and what else is to be said."""
    if not run.kept("rollouts") or not ref.kept("rollouts"):
        return [], []
    from trueline.laws.rollouts.greedy import first_tokens  # a check without a reference need not wait for these
    from trueline.same_job.alignment import unaligned_switches
    from trueline.store.job_files.job import open_job

    remarks = unaligned_switches(open_job(run).configs, open_job(ref).configs, rollouts=True)
    try:
        return first_tokens(run, ref), remarks
    except CannotTell as error:
        return [], [f"Rollouts and those of the reference were not compared: {error}.", *remarks]
