"""Differences between the surroundings of two jobs: variables, packages, sources, switches of torch, devices, build."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trueline.same_job.difference import UNSET, Difference
from trueline.same_job.settings import canonical_value, is_off
from trueline.same_job.vocabulary import Starts, fits, likelihood_of, weights
from trueline.schema.files.job_facts import JobFacts, SourceState
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.job_files.job import Job

_LEAST_PACKAGE = 14
_SCRIPT, _DIRTY = 62, 60
"""Likelihood that another commit of the job's sources, or a change outside all commits, explains other numbers."""


def compare_environment(job: Job, ref_job: Job) -> tuple[list[Difference], int]:
    """Differences in the surroundings, and the number of facts that both jobs have."""
    differences: list[Difference] = []
    compared = 0
    if job.environ is not None and ref_job.environ is not None:
        compared += len(set(job.environ) | set(ref_job.environ))
        differences += _variable_differences(job.environ, ref_job.environ)
    if job.packages is not None and ref_job.packages is not None:
        compared += len(set(job.packages) & set(ref_job.packages))
        differences += _package_differences(job.packages, ref_job.packages)
    if job.env is None or ref_job.env is None:
        return differences, compared
    compared += len(set(job.env.flags) & set(ref_job.env.flags))
    differences += _flag_differences(job.env, ref_job.env)
    facts, ref_facts = job.env.facts, ref_job.env.facts
    if facts is not None and ref_facts is not None:
        compared += len(set(facts.sources) & set(ref_facts.sources)) + len(set(facts.build) & set(ref_facts.build))
        differences += _source_differences(facts.sources, ref_facts.sources)
        differences += _table_differences("build", "build of torch", facts, ref_facts)
        differences += _table_differences("devices", "devices", facts, ref_facts)
    return differences, compared


def _variable_differences(run: Mapping[str, str], ref: Mapping[str, str]) -> Iterator[Difference]:
    variables, ref_variables = _by_shared_name(run), _by_shared_name(ref)
    unset = cast(Mapping[str, str], weights()["variables"]["unset"])
    for name in sorted(variables.keys() | ref_variables.keys()):
        if fits(name, weights()["variables"]["harmless"]):
            continue
        sides = variables.get(name), ref_variables.get(name)
        texts = [unset.get(name) if side is None else side[1] for side in sides]
        if canonical_value(texts[0] or "") == canonical_value(texts[1] or "") or (
            _is_off_text(texts[0]) and _is_off_text(texts[1])
        ):
            continue
        own_name = (sides[0] or sides[1] or ("", ""))[0]
        run_text, ref_text = (UNSET if side is None else side[1] for side in sides)
        likely = likelihood_of("variables", name)
        yield Difference("env-differs", "environment", name, f"${own_name}", run_text, ref_text, likely, "start")


def _by_shared_name(variables: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(name, value) of variables by the lower-case name that libraries of several devices share."""
    shared = cast(Mapping[str, str], weights()["variables"]["same"])
    return {shared.get(name.lower(), name.lower()): (name, value) for name, value in variables.items()}


def _is_off_text(text: str | None) -> bool:
    return text is None or is_off(text)


def _package_differences(run: Mapping[str, str], ref: Mapping[str, str]) -> Iterator[Difference]:
    sides = [{_normalized_name(name): version for name, version in packages.items()} for packages in (run, ref)]
    for name in sorted(sides[0].keys() | sides[1].keys()):
        likely = likelihood_of("packages", name)
        versions = [packages.get(name) for packages in sides]
        if versions[0] == versions[1] or likely < _LEAST_PACKAGE:
            continue
        if None in versions and name in ("cuda", "python"):  # not recorded, rather than not installed
            continue
        says = f"{name}" if name != "python" else "Python"
        run_text, ref_text = (version or "not installed" for version in versions)
        yield Difference("package-differs", "packages", name, says, run_text, ref_text, likely, _first_effect(likely))


def _normalized_name(name: str) -> str:
    return name.lower().replace("_", "-")


def _first_effect(likely: int) -> Starts:
    return "start" if likely >= 40 else "rounding"


def _source_differences(run: Mapping[str, SourceState], ref: Mapping[str, SourceState]) -> Iterator[Difference]:
    for name in sorted((set(run) & set(ref)) - {"trueline"}):  # watching changes no number
        states = run[name], ref[name]
        subject = "the script's sources" if name == "script" else f"the sources of {name}"
        likely = _SCRIPT if name == "script" else max(likelihood_of("packages", name), 42)
        if states[0].commit and states[1].commit and states[0].commit != states[1].commit:
            run_text, ref_text = (f"commit {state.commit[:12]}" for state in states)
            yield Difference(
                "package-differs", "sources", name, f"the commit of {subject}", run_text, ref_text, likely, "start"
            )
        elif states[0].dirty != states[1].dirty:
            run_text, ref_text = (f"changes {state.dirty[:12]}" if state.dirty else "none" for state in states)
            says = f"what was changed in {subject} since its commit"
            yield Difference("package-differs", "sources", name, says, run_text, ref_text, min(likely, _DIRTY), "start")


def _flag_differences(run: RankEnv, ref: RankEnv) -> Iterator[Difference]:
    run_flags, ref_flags = (
        {**env.flags, **{f"autocast.{k}": v for k, v in env.autocast.items()}} for env in (run, ref)
    )
    for name in sorted(run_flags.keys() | ref_flags.keys()):
        run_flag, ref_flag = run_flags.get(name), ref_flags.get(name)
        recorded_by_both = name in run_flags and name in ref_flags
        # Flags that one version of torch does not have are no difference; autocast is off where it is not recorded.
        if run_flag == ref_flag or not (recorded_by_both or name.startswith("autocast")):
            continue
        likely = likelihood_of("flags", name)
        starts: Starts = "start" if likely >= 50 else "rounding"
        run_text, ref_text = (_value_text(flag) for flag in (run_flag, ref_flag))
        yield Difference(
            "env-differs", "switches of torch", name, f"torch's {name}", run_text, ref_text, likely, starts
        )


def _table_differences(name: str, says: str, run: JobFacts, ref: JobFacts) -> Iterator[Difference]:
    run_facts, ref_facts = (cast(Mapping[str, Any], getattr(facts, name)) for facts in (run, ref))
    for key in sorted(set(run_facts) & set(ref_facts)):
        if run_facts[key] != ref_facts[key]:
            run_text, ref_text = _value_text(run_facts[key]), _value_text(ref_facts[key])
            likely = likelihood_of(name, key)
            yield Difference(
                "env-differs", says, f"{name}.{key}", f"{says}: {key}", run_text, ref_text, likely, "rounding"
            )


def _value_text(value: Any) -> str:
    return UNSET if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
