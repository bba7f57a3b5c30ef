"""Differences between the surroundings of two jobs: variables, packages, sources, switches of torch, devices, build."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trueline.same_job.difference import UNSET, Difference
from trueline.same_job.settings import canonical_value, is_off
from trueline.same_job.vocabulary import Starts, fits, likely_of, weights
from trueline.schema.files.job_facts import JobFacts, SourceState
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.job_files.job import Job

_LEAST_PACKAGE = 14
_SCRIPT, _DIRTY = 62, 60
"""How likely other commits of the sources of the job, and changes that are in none, explain anything."""


def compare_environment(one: Job, other: Job) -> tuple[list[Difference], int]:
    """What differs in the surroundings, and how many facts both jobs have."""
    found: list[Difference] = []
    compared = 0
    if one.environ is not None and other.environ is not None:
        compared += len(set(one.environ) | set(other.environ))
        found += _variables(one.environ, other.environ)
    if one.packages is not None and other.packages is not None:
        compared += len(set(one.packages) & set(other.packages))
        found += _packages(one.packages, other.packages)
    if one.env is None or other.env is None:
        return found, compared
    compared += len(set(one.env.flags) & set(other.env.flags))
    found += _flags(one.env, other.env)
    facts, ref_facts = one.env.facts, other.env.facts
    if facts is not None and ref_facts is not None:
        compared += len(set(facts.sources) & set(ref_facts.sources)) + len(set(facts.build) & set(ref_facts.build))
        found += _sources(facts.sources, ref_facts.sources)
        found += _table("build", "build of torch", facts, ref_facts)
        found += _table("devices", "devices", facts, ref_facts)
    return found, compared


def _variables(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[Difference]:
    mine, theirs = _by_shared_name(one), _by_shared_name(other)
    unset = cast(Mapping[str, str], weights()["variables"]["unset"])
    for name in sorted(mine.keys() | theirs.keys()):
        if fits(name, weights()["variables"]["harmless"]):
            continue
        a, b = mine.get(name), theirs.get(name)
        texts = [unset.get(name) if each is None else each[1] for each in (a, b)]
        if canonical_value(texts[0] or "") == canonical_value(texts[1] or "") or (_off(texts[0]) and _off(texts[1])):
            continue
        shown = (a or b or ("", ""))[0]
        run, ref = (UNSET if each is None else each[1] for each in (a, b))
        yield Difference(
            "env-differs", "environment", name, f"${shown}", run, ref, likely_of("variables", name), "start"
        )


def _by_shared_name(variables: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(name, value) by the name in lower case that libraries of several devices share."""
    shared = cast(Mapping[str, str], weights()["variables"]["same"])
    return {shared.get(name.lower(), name.lower()): (name, value) for name, value in variables.items()}


def _off(text: str | None) -> bool:
    return text is None or is_off(text)


def _packages(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[Difference]:
    mine, theirs = ({_plain(name): version for name, version in each.items()} for each in (one, other))
    for name in sorted(mine.keys() | theirs.keys()):
        likely = likely_of("packages", name)
        a, b = mine.get(name), theirs.get(name)
        if a == b or likely < _LEAST_PACKAGE or (None in (a, b) and name in ("cuda", "python")):
            continue
        says = f"{name}" if name != "python" else "Python"
        run, ref = (each or "not installed" for each in (a, b))
        yield Difference("package-differs", "packages", name, says, run, ref, likely, _of_kernels(likely))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _of_kernels(likely: int) -> Starts:
    return "start" if likely >= 40 else "rounding"


def _sources(one: Mapping[str, SourceState], other: Mapping[str, SourceState]) -> Iterator[Difference]:
    for name in sorted((set(one) & set(other)) - {"trueline"}):  # what watches changes no number
        a, b = one[name], other[name]
        what = "the script's sources" if name == "script" else f"the sources of {name}"
        likely = _SCRIPT if name == "script" else max(likely_of("packages", name), 42)
        if a.commit and b.commit and a.commit != b.commit:
            run, ref = (f"commit {each.commit[:12]}" for each in (a, b))
            yield Difference("package-differs", "sources", name, f"the commit of {what}", run, ref, likely, "start")
        elif a.dirty != b.dirty:
            run, ref = (f"changes {each.dirty[:12]}" if each.dirty else "none" for each in (a, b))
            says = f"what was changed in {what} since its commit"
            yield Difference("package-differs", "sources", name, says, run, ref, min(likely, _DIRTY), "start")


def _flags(one: RankEnv, other: RankEnv) -> Iterator[Difference]:
    mine, theirs = ({**env.flags, **{f"autocast.{k}": v for k, v in env.autocast.items()}} for env in (one, other))
    for name in sorted(mine.keys() | theirs.keys()):
        a, b = mine.get(name), theirs.get(name)
        recorded_by_both = name in mine and name in theirs
        if a == b or not (recorded_by_both or name.startswith("autocast")):
            continue
        likely = likely_of("flags", name)
        starts: Starts = "start" if likely >= 50 else "rounding"
        run, ref = (_text(each) for each in (a, b))
        yield Difference("env-differs", "switches of torch", name, f"torch's {name}", run, ref, likely, starts)


def _table(name: str, says: str, one: JobFacts, other: JobFacts) -> Iterator[Difference]:
    mine, theirs = (cast(Mapping[str, Any], getattr(facts, name)) for facts in (one, other))
    for key in sorted(set(mine) & set(theirs)):
        if mine[key] != theirs[key]:
            run, ref = _text(mine[key]), _text(theirs[key])
            likely = likely_of(name, key)
            yield Difference("env-differs", says, f"{name}.{key}", f"{says}: {key}", run, ref, likely, "rounding")


def _text(value: Any) -> str:
    return UNSET if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
