"""What two trainings did otherwise, side by side."""

from __future__ import annotations

import os
from dataclasses import replace

from trueline.judge.facts.training_facts import all_subjects, read_facts
from trueline.same_job.diff import JobDiff, diff
from trueline.same_job.fact_pair import ABSENT, FactPair
from trueline.store.job_files.job import Job, open_job
from trueline.store.reader import Run


def diff_trainings(run: str | os.PathLike[str] | Run | Job, ref: str | os.PathLike[str] | Run | Job) -> JobDiff:
    """Compare two jobs as ``diff`` does, and of two Runs what they did. Raises as ``diff`` does."""
    job, ref_job = (side if isinstance(side, Job) else open_job(side) for side in (run, ref))
    job_diff = diff(job, ref_job)
    if job.run is None or ref_job.run is None:
        return job_diff
    return replace(job_diff, facts=facts_apart(job.run, ref_job.run))


def facts_apart(run: Run, ref: Run) -> tuple[FactPair, ...]:
    """Facts whose numbers differ, in the order of ``all_subjects``, without those that one of the Runs lacks."""
    facts, ref_facts = read_facts(run), read_facts(ref)
    by_name = {fact.name: fact for fact in facts.facts}
    ref_by_name = {fact.name: fact for fact in ref_facts.facts}
    unknown = {*facts.unknown, *ref_facts.unknown}
    pairs: list[FactPair] = []
    for subject in all_subjects():
        fact, ref_fact = by_name.get(subject.name), ref_by_name.get(subject.name)
        # By its numbers: the sentence may also say how many steps were looked at.
        if subject.words in unknown or (fact and fact.value) == (ref_fact and ref_fact.value):
            continue
        pairs.append(FactPair(subject.name, fact.text if fact else ABSENT, ref_fact.text if ref_fact else ABSENT))
    return tuple(pairs)
