"""Packs of msProbe's ``ConfigChecker``: a zip file with members ``env``, ``pip``, ``hyperparameters/*.json``,
``dataset/stepN/rankM/dataset.json``, ``weights/stepN/rankM/weight.json`` and ``random/rankM.json`` (26.2).

Read are environment, packages and hyper-parameters; of data, weights and random calls a pack has statistics only, from
which equality cannot be told: they are named.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.documents import parsed
from trueline.schema.text.reading import reading, require_room
from trueline.schema.text.secrets import sorted_out
from trueline.store.env_and_findings import env_of
from trueline.store.job_files.command_lines import read_value
from trueline.store.job_files.config_files import MAX_BYTES, flat

OWN_MEMBER = "trueline.json"
"""The member that packs of ``trueline.compat.msprobe`` have beside msProbe's own, as of ``trueline env collect``."""
_STATISTICS = ("dataset", "weights", "random")
_TODO = "Pass a pack that ConfigChecker of msProbe wrote."


@dataclass(frozen=True)
class Pack:
    """What a pack says of a job; ``env`` where Trueline wrote it."""

    env: RankEnv | None
    environ: Mapping[str, str] | None
    packages: Mapping[str, str] | None
    configs: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]


def read_pack(path: Path) -> Pack:
    """What a pack says. Raises ``InputError`` for what is none."""
    with reading(f"Pack '{path}'", _TODO), zipfile.ZipFile(path) as pack:
        names = pack.namelist()
        members = {name.partition("/")[0] for name in names} & {"env", "pip", "hyperparameters", *_STATISTICS}
        if not members:
            raise InputError(f"'{path}' is no pack of msProbe: it has no 'env', 'pip' or 'hyperparameters'. {_TODO}")
        require_room(sum(entry.file_size for entry in pack.infolist()), path.stat().st_size)
        env = env_of(pack.read(OWN_MEMBER)) if OWN_MEMBER in names else None
        environ = _texts(_object(pack, "env")) if "env" in names else None
        packages = _packages(pack.read("pip").decode(errors="replace")) if "pip" in names else None
        files = [name for name in names if name.startswith("hyperparameters/") and name.endswith(".json")]
        configs = {name: _options(_object(pack, name)) for name in sorted(files)}  # dynamic before static
    statistics = [name for name in _STATISTICS if name in members]
    note = f"{path.name}: {', '.join(statistics)} of a pack are statistics, which do not tell whether both are equal"
    return Pack(
        env, None if environ is None else sorted_out(environ)[0], packages, configs, (note,) if statistics else ()
    )


def _object(pack: zipfile.ZipFile, name: str) -> Mapping[str, Any]:
    if pack.getinfo(name).file_size > 16 * MAX_BYTES:
        raise ValueError(f"'{name}' is larger than any that msProbe writes")
    content = parsed(pack.read(name))
    if not isinstance(content, Mapping):
        raise ValueError(f"'{name}' holds a {type(content).__name__}, expected an object")
    return cast(Mapping[str, Any], content)


def _texts(content: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in content.items()}


def _packages(text: str) -> dict[str, str]:
    pairs = (line.strip().partition("=") for line in text.splitlines() if "=" in line)
    return {name.lower().replace("_", "-"): version for name, _, version in pairs}


def _options(content: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name. One that several scripts set has ``values``: the last one holds."""
    options: dict[str, Any] = {}
    for name, value in flat({name: value for name, value in content.items() if not _is_doubled(value)}).items():
        options[name] = read_value(value)
    doubled = {name: value["values"][-1] for name, value in content.items() if _is_doubled(value) and value["values"]}
    return options | {name.replace("-", "_"): read_value(value) for name, value in doubled.items()}


def _is_doubled(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(cast(Mapping[str, Any], value).get("values"), list)
