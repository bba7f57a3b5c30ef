"""The JSON documents of a Run other than its manifest: each rank's environment, and the findings of live checks.

A document that is damaged is skipped as a whole: one of its values may be another than was written, and would be
evidence against a rank.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import fields

from fsspec import AbstractFileSystem
from pydantic import ValidationError

from trueline.schema.files.run_manifest import RankEnv, unknown_keys
from trueline.schema.finding import Finding
from trueline.schema.text.documents import decode
from trueline.store import file_names
from trueline.store.file_names import Problem
from trueline.store.log.listing import names_in

_FINDING_KEYS = frozenset(field.name for field in fields(Finding))


def read_env(fs: AbstractFileSystem, root: str, problems: list[Problem]) -> dict[int, RankEnv]:
    """Environments by rank, as each rank left its own; ``problems`` names files that are damaged and keys that are
    unknown.
    """
    env: dict[int, RankEnv] = {}
    for name in names_in(fs, posixpath.join(root, file_names.ENV_DIR)):
        rank = file_names.env_rank(name)
        if rank is None:
            continue
        file = posixpath.join(file_names.ENV_DIR, name)
        try:
            env[rank] = env_of(fs.cat_file(posixpath.join(root, file)))
        except (OSError, ValueError) as error:
            problems.append(Problem(f"it is damaged ({error}) and was skipped", file=file))
        else:
            problems += name_unknown(file, unknown_keys(env[rank]))
    return env


def env_of(data: bytes) -> RankEnv:
    """The environment in a file under ``env/``. Raises ``ValueError``."""
    try:
        return RankEnv.model_validate(decode(data)[0])
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"'{'.'.join(map(str, first['loc']))}': {first['msg'].lower()}") from None


def read_findings(fs: AbstractFileSystem, root: str, problems: list[Problem]) -> list[Finding]:
    """Findings of live checks, in order per rank; lines that are damaged are named in ``problems``."""
    findings: list[Finding] = []
    for name in filter(lambda name: file_names.findings_rank(name) is not None, names_in(fs, root)):
        try:
            data = fs.cat_file(posixpath.join(root, name))
        except OSError as error:
            problems.append(Problem(f"it cannot be read ({error}) and was skipped", file=name))
            continue
        file_findings, damage = findings_of(data)
        findings += file_findings
        problems += [problem.in_file(name) for problem in damage]
    return findings


def findings_of(data: bytes) -> tuple[list[Finding], list[Problem]]:
    """The Findings in a file, and what had to be skipped. A line without its end was being written."""
    findings: list[Finding] = []
    problems: list[Problem] = []
    if not data:
        problems.append(Problem("it is empty, and is written with its first line: what it held is gone"))
    *lines, rest = data.split(b"\n")
    if rest:
        problems.append(Problem(f"its last line is incomplete {file_names.INTERRUPTED} and was skipped", torn=True))
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            document, _ = decode(line)
            findings.append(Finding.from_json(document))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            problems.append(Problem(f"line {number} is damaged ({error}) and was skipped"))
        else:
            unknown = sorted(set(document) - _FINDING_KEYS)
            problems += [Problem(f"line {number}: {problem.text}") for problem in name_unknown("", unknown)]
    return findings, problems


def name_unknown(file: str, keys: Collection[str]) -> list[Problem]:
    """A line on keys that this version has no word for, if there are any."""
    names = ", ".join(f"'{key}'" for key in keys)
    text = f"this version does not know {names} (of a newer Trueline, or damage)"
    return [Problem(text, file=file)] if keys else []
