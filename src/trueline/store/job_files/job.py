"""One of two jobs that are compared: a Run, a file of ``trueline env collect``, a configuration, a directory of these,
or a pack of msProbe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.reading import shortened
from trueline.store import file_names
from trueline.store.env_and_findings import env_of
from trueline.store.job_files.command_lines import options_of
from trueline.store.job_files.config_files import SUFFIXES, exported_by, flat, options_in, read_config
from trueline.store.job_files.msprobe_pack import read_pack
from trueline.store.job_files.tokenizers import TOKENIZER_FILES, tokenizer_of
from trueline.store.reader import Run

_EXPECTED = (
    "Pass a Run, a file that `trueline env collect` wrote, a configuration "
    f"({', '.join(SUFFIXES)}), or a directory of these."
)
_MAX_FILES = 60
"""Configurations that a directory is read for: one that has more is no job's, but a collection."""


@dataclass(frozen=True)
class Job:
    """Facts of a job. ``env`` is that of its first rank, ``configs`` are options by where they stand, the most
    telling first, ``tokenizer`` what its files say; ``run`` is None where it is no Run.
    """

    name: str
    run: Run | None = None
    env: RankEnv | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    environ: Mapping[str, str] | None = None
    packages: Mapping[str, str] | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()


def open_job(path: str | os.PathLike[str] | Run) -> Job:
    """The job that ``path`` tells of. Raises ``InputError`` for what is none."""
    if isinstance(path, Run):
        return job_of_run(path)
    address = os.fspath(path)
    if "://" in address or "::" in address:
        return job_of_run(Run(address))
    local_path = Path(address)
    if local_path.is_dir():
        if (local_path / file_names.MANIFEST).is_file():
            return job_of_run(Run(address))
        return _of_directory(local_path)
    if not local_path.is_file():
        raise InputError(f"There is nothing at '{shortened(address)}'. {_EXPECTED}")
    if local_path.suffix == ".zip":
        return _of_pack(local_path)
    if local_path.suffix not in SUFFIXES:
        raise InputError(f"'{shortened(address)}' is of a kind that is not known. {_EXPECTED}")
    env = _collected(local_path)
    if env is not None:
        return _of_env(address, env)
    name = local_path.name
    if name in TOKENIZER_FILES:
        return Job(address, tokenizer=tokenizer_of([local_path]))
    exported = exported_by(local_path)
    return Job(address, configs={name: read_config(local_path)}, environ=exported or None)


def job_of_options(name: str, options: Mapping[str, Any]) -> Job:
    """A job of which one configuration is known, as it was held in memory."""
    return Job(name, configs={name: flat(options)})


def job_of_run(run: Run) -> Job:
    """The job of a Run."""
    env = run.env[min(run.env)] if run.env else None
    job = _of_env(run.path, env) if env is not None else Job(run.path)
    configs = dict(job.configs)
    if not any(name.startswith("command") for name in configs) and (options := options_of(run.manifest.command)):
        configs["command"] = options
    return Job(run.path, run, env, configs, job.environ, job.packages, job.tokenizer, job.notes)


def _of_env(name: str, env: RankEnv) -> Job:
    facts = env.facts
    if facts is None:
        return Job(name, env=env, environ=env.environ, packages=env.versions)
    configs: dict[str, Mapping[str, Any]] = {where: flat(options) for where, options in facts.configs.items()}
    if options := options_of(facts.command):
        configs["command"] = options
    notes = list(facts.left_out)
    for file, text in facts.files.items():
        try:
            configs[file] = options_in(Path(file), text)
        except InputError as error:
            notes.append(str(error))
    packages = {**facts.packages, **{name: version for name, version in env.versions.items() if name != "platform"}}
    tokenizer = {name.partition(".")[2]: value for name, value in configs.pop("tokenizer", {}).items()}
    return Job(name, None, env, configs, env.environ, packages, tokenizer, tuple(notes))


def _collected(path: Path) -> RankEnv | None:
    """What ``trueline env collect``, or a rank of a Run, wrote; None for another file."""
    if path.suffix != ".json":
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"'{shortened(str(path))}' cannot be read: {error.strerror}. {_EXPECTED}") from None
    if b'"environ"' not in data or b'"versions"' not in data:
        return None
    try:
        return env_of(data)
    except ValueError as error:
        raise InputError(f"'{shortened(str(path))}' is damaged: {error}. Collect it again.") from None


def _of_directory(folder: Path) -> Job:
    """The configurations of a directory, and what its tokenizer's files say."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    tokenizers = [path for path in files if path.name in TOKENIZER_FILES]
    envs = {path: env for path in files if path not in tokenizers and (env := _collected(path)) is not None}
    configs = [path for path in files if path not in tokenizers and path not in envs]
    if len(configs) + len(envs) > _MAX_FILES:
        raise InputError(
            f"'{folder}' has several configurations ({len(configs)}): which ones are the job's is not known. Pass one "
            "of them, or a directory with those of the job alone."
        )
    if not files:
        raise InputError(f"'{folder}' is no Run and has no configuration. {_EXPECTED}")
    options_by_file: dict[str, Mapping[str, Any]] = {}
    environ: dict[str, str] = {}
    notes: list[str] = []
    for path in configs:
        try:
            options_by_file[path.name] = read_config(path)
            environ |= exported_by(path)
        except InputError as error:
            notes.append(str(error))
    if len(envs) == 1:
        job = _of_env(str(folder), next(iter(envs.values())))
        merged = {**job.configs, **options_by_file}
        return Job(str(folder), None, job.env, merged, job.environ, job.packages, tokenizer_of(tokenizers), job.notes)
    return Job(
        str(folder),
        configs=options_by_file,
        environ=environ or None,
        tokenizer=tokenizer_of(tokenizers),
        notes=tuple(notes),
    )


def _of_pack(path: Path) -> Job:
    pack = read_pack(path)
    if pack.env is not None:
        job = _of_env(str(path), pack.env)
        return replace(job, configs={**pack.configs, **job.configs}, notes=(*job.notes, *pack.notes))
    return Job(str(path), configs=pack.configs, environ=pack.environ, packages=pack.packages, notes=pack.notes)
