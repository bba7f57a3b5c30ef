"""Facts that a process knows of its job, without a change to the script: packages, sources, build of torch, devices."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import torch
from torch import nn

from trueline.capture.job.environment import flags, versions
from trueline.capture.model.untraced import forward_module
from trueline.schema.command_words import script_in
from trueline.schema.files.job_facts import JobFacts, ModulesAlike, SourceState
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.secrets import redacted_source, redacted_text
from trueline.schema.text.words import numberless

_CONFIGS = (".json", ".yaml", ".yml", ".toml", ".sh")
_MAX_FILE_BYTES, _MAX_FILES = 64 * 1024, 12
_MAX_SCRIPTS_BYTES = 256 * 1024
"""Of sources in all: looking for secrets in them takes 1.5 ms of CPU a kB, in a thread."""
_INSTALLED = {"site-packages", "dist-packages"}
_GIT_S = 5.0
"""Seconds that one question to git may take: a checkout on a network disk is left out."""
_MAX_MODULES = 2_000
_FIELD = re.compile(r"^(Name|Version): *(.*?) *$", re.MULTILINE)


class FactsInBackground:
    """Collects in a thread, so that no step waits; ``configs`` are those that the caller saw."""

    def __init__(self, model: nn.Module, device: torch.device, configs: Mapping[str, dict[str, Any]]) -> None:
        self._facts: JobFacts | None = None
        self._modules: list[ModulesAlike] = []
        self._tied: list[list[str]] = []
        with contextlib.suppress(Exception):  # a model of another library, which no description is to be lost for
            self._modules, self._tied = modules_of(model), tied_of(model)
        self._device, self._configs = device, dict(configs)
        self._thread = threading.Thread(target=self._collect, name="trueline-facts", daemon=True)
        self._thread.start()

    def now(self, *, patience_s: float = 0.0) -> JobFacts | None:
        """The facts, or None while they are not there; wait for at most ``patience_s``."""
        if patience_s > 0:
            self._thread.join(patience_s)
        return self._facts

    def _collect(self) -> None:
        try:
            facts = collect_facts(self._device, command=sys.argv, configs=self._configs)
            facts = facts.model_copy(update={"scripts": scripts(_script(sys.argv), facts.left_out)})
        except Exception as error:  # what cannot be collected may not stop a training
            facts = JobFacts(command=sys.argv, left_out=[f"facts of the job: {type(error).__name__}"])
        self._facts = facts.model_copy(update={"modules": self._modules, "tied": self._tied})


def collect_facts(
    device: torch.device,
    *,
    command: Sequence[str],
    configs: Mapping[str, dict[str, Any]] | None = None,
    files: Sequence[Path] = (),
) -> JobFacts:
    """Facts of this process; ``files`` are configurations beside those that the ``command`` names."""
    left_out: list[str] = []
    paths = [*files, *(path for path in map(_as_config, command) if path is not None)]
    return JobFacts(
        command=list(command),
        packages=dict(packages()),
        sources=sources(_script(command), left_out),
        build=build(),
        devices=devices(device),
        configs=dict(configs or {}),
        files=_texts(dict.fromkeys(paths), left_out),
        left_out=left_out,
    )


def env_here(command: Sequence[str], files: Sequence[Path]) -> RankEnv:
    """The environment of a rank that would be started here by ``command``, with these configurations."""
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.device(torch.accelerator.current_accelerator() or "cpu")
    return RankEnv(
        hostname=socket.gethostname(),
        device=str(device),
        versions=versions(),
        flags=flags(),
        environ=dict(os.environ),  # of which RankEnv keeps some
        facts=collect_facts(device, command=command, files=files),
    )


def packages() -> tuple[tuple[str, str], ...]:
    """Name and version of every installed package, sorted."""
    version_of: dict[str, str] = {}
    for folder in sys.path:
        for name, version in _packages_in(folder):
            version_of.setdefault(name, version)  # of two the first is imported
    return tuple(sorted(version_of.items()))


@cache
def _packages_in(folder: str) -> Sequence[tuple[str, str]]:
    """Those of a folder, once for a process and all that are forked of it."""
    versions: list[tuple[str, str]] = []
    for package in importlib.metadata.distributions(path=[folder]):
        with contextlib.suppress(Exception):
            fields = _fields(package)
            versions.append((fields["Name"].lower().replace("_", "-"), fields["Version"]))
    return versions


def _fields(package: importlib.metadata.Distribution) -> dict[str, str]:
    """Name and Version of ``package``, without parsing its whole description: of 170 packages that takes 0.25 s."""
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    return dict(_FIELD.findall(text.partition("\n\n")[0]))


def sources(script: Path | None, left_out: list[str]) -> dict[str, SourceState]:
    """The git state of packages that are installed from a checkout, and of the script."""
    folders = {name: Path(folder) for name, folder in _editable()}
    if script is not None:
        folders["script"] = script.parent
    states: dict[str, SourceState] = {}
    for name, folder in folders.items():
        state = _state(str(folder))
        if state is None:
            left_out.append(f"sources of {name}: no git checkout, or git did not answer")
        else:
            states[name] = state
    return states


def scripts(script: Path | None, left_out: list[str]) -> dict[str, str]:
    """Texts of the script, and of modules that were imported from beside it, by path, without what looks secret: a line
    that a finding names can be read later, as it was.
    """
    if script is None:
        return {}
    text_of: dict[str, str] = {}
    room = _MAX_SCRIPTS_BYTES
    for path in _own_files(script):
        try:
            size = path.stat().st_size
            if size > room:
                left_out.append(f"text of {path.name}: more than is kept of sources")
                continue
            text_of[str(path)] = redacted_source(path.read_text(encoding="utf-8"))
            room -= size
        except (OSError, UnicodeDecodeError) as error:
            left_out.append(f"text of {path.name}: {type(error).__name__}")
    return text_of


def _own_files(script: Path) -> list[Path]:
    """The script and the files of modules below its folder that the user may have written: not installed ones."""
    # texts, as a job has thousands of modules: by pathlib, and asking sysconfig for each, it took 0.7 s of CPU
    folder = os.path.join(script.parent, "")
    installed = tuple(os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), Path(__file__).parents[2]))
    files = [str(script), *filter(None, map(_file_of, [*sys.modules.values()]))]
    below = [Path(file) for file in dict.fromkeys(files) if file.startswith(folder) and not file.startswith(installed)]
    return [path for path in below if _INSTALLED.isdisjoint(path.parts)]


def _file_of(module: Any) -> str | None:
    """The file of sources that a module was read from, where it is one."""
    # of a module that makes its attributes as they are asked for none is made
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py") or not os.path.isabs(file):
        return None
    return os.path.normpath(file) if "/./" in file else file


@cache
def _editable() -> tuple[tuple[str, str], ...]:
    """Packages that are installed from a directory, and which (PEP 610)."""
    folders: list[tuple[str, str]] = []
    for package in importlib.metadata.distributions():
        with contextlib.suppress(Exception):
            origin = json.loads(package.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                folders.append((_fields(package)["Name"].lower(), unquote(urlparse(origin["url"]).path)))
    return tuple(folders)


@cache
def _state(folder: str) -> SourceState | None:
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "diff", "HEAD", "--no-ext-diff", "--", ".")
    if commit is None or changed is None:
        return None
    return SourceState(
        commit=commit.decode().strip(), dirty=hashlib.sha256(changed).hexdigest()[:16] if changed else ""
    )


def _git(folder: str, *words: str) -> bytes | None:
    """Output of git; None where it fails or is too slow."""
    # No lock in the user's checkout, and no question on the terminal for a password.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        process = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, timeout=_GIT_S, check=False, env=environ
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout if process.returncode == 0 else None


def _script(command: Sequence[str]) -> Path | None:
    """The script that a command runs."""
    script = script_in(command)
    path = Path(script) if script else None
    return path.resolve() if path is not None and path.is_file() else None


def build() -> dict[str, Any]:
    """Facts of torch's build."""
    version = torch.version
    facts: dict[str, Any] = {
        "cuda": version.cuda,
        "hip": getattr(version, "hip", None),
        "cann": getattr(version, "cann", None),
        "commit": getattr(version, "git_version", None),
        "debug": bool(getattr(version, "debug", False)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    with contextlib.suppress(Exception):
        facts["cudnn"] = torch.backends.cudnn.version()
    with contextlib.suppress(Exception):
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if version.cuda else None
    words = torch.__config__.show().replace(",", " ").split()
    facts["blas"] = next((word.partition("=")[2] for word in words if word.startswith("BLAS_INFO=")), None)
    return {name: value for name, value in facts.items() if value is not None}


def devices(device: torch.device) -> dict[str, Any]:
    """The accelerators of this process, their driver, and what a number becomes that overflows on ``device``."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or module is None or not module.is_available():
        return {"name": "cpu"}
    facts: dict[str, Any] = {"name": str(module.get_device_name(device)), "count": int(module.device_count())}
    with contextlib.suppress(Exception):
        facts["capability"] = ".".join(map(str, module.get_device_capability(device)))
    with contextlib.suppress(Exception):
        facts["memory_mib"] = module.get_device_properties(device).total_memory // 2**20
    if device.type == "cuda":
        with contextlib.suppress(Exception):
            facts["driver"] = str(torch._C._cuda_getDriverVersion())
    with contextlib.suppress(Exception):
        facts["overflow"] = overflow(device)
    return facts


def overflow(device: torch.device) -> str:
    """Twice the largest float16 on a device: ``inf``, or a number where it saturates (``INF_NAN_MODE_ENABLE``
    on Ascend). Tried, as the variable alone does not say what the device does. Reads a number from the device.
    """
    largest = torch.full((1,), torch.finfo(torch.float16).max, dtype=torch.float16, device=device)
    return f"{(largest + largest).item():g}"


def modules_of(model: nn.Module) -> list[ModulesAlike]:
    """The model's modules in their order; those at one place of repeated layers counted together."""
    counts: dict[tuple[str, str], int] = {}
    inner = forward_module(model)  # None where it is compiled; whose truth is that of what it wraps, and has no length
    for name, module in (model if inner is None else inner).named_modules():
        key = numberless(name), type(module).__name__
        counts[key] = counts.get(key, 0) + 1
    return [ModulesAlike(name=name, kind=kind, count=count) for (name, kind), count in [*counts.items()][:_MAX_MODULES]]


def tied_of(model: nn.Module) -> list[list[str]]:
    """Names that are one parameter."""
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(name)
    return sorted(group for group in names.values() if len(group) > 1)


def _as_config(word: str) -> Path | None:
    """The configuration that a word of a command names, if it is one."""
    path = Path(word.rpartition("=")[2])
    try:
        return path if path.suffix in _CONFIGS and path.is_file() else None
    except OSError:
        return None


def _texts(paths: Iterable[Path], left_out: list[str]) -> dict[str, str]:
    """Texts of configurations by name, without what looks secret."""
    text_of: dict[str, str] = {}
    for path in paths:
        try:
            if path.stat().st_size > _MAX_FILE_BYTES or len(text_of) == _MAX_FILES:
                left_out.append(f"{path.name}: more than is kept of configurations")
                continue
            text_of[path.name] = redacted_text(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            left_out.append(f"{path.name}: {type(error).__name__}")
    return text_of
