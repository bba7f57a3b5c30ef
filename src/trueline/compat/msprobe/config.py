"""msProbe's config.json as Trueline understands it. Pure: nothing is recorded or written here.

The fields and their values are those of msProbe's "Configuration File Introduction" for PyTorch (26.2).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.plan import Depth, Phase, Preset
from trueline.schema.text.documents import parsed
from trueline.schema.text.reading import shortened, shown, why

PRESETS: Mapping[str, Preset] = {"L0": "modules", "L1": "ops", "mix": "mix"}
PHASES: Mapping[str, tuple[Phase, ...]] = {
    "L0": ("fwd", "bwd", "param", "grad"),
    "L1": ("fwd", "bwd", "opt", "comm"),
    "mix": ("fwd", "bwd", "param", "grad", "opt", "comm"),
}
BACKWARD: frozenset[Phase] = frozenset({"bwd", "grad"})
"""What msProbe calls backward data; the rest is forward."""

TASKS = ("statistics", "tensor", "structure")
DEPTHS: Mapping[str, Depth] = {"statistics": "stats", "md5": "fingerprint", "xor": "fingerprint"}
DATA_MODES = ("all", "forward", "backward", "input", "output")

SECTIONS = (*TASKS, "acc_check", "overflow_check", "nan_check", "diff_check", "exception_dump", "free_benchmark")
GENERAL = ("task", "dump_path", "rank", "step", "level", "extra_info")
NO_MATTER = ("async_dump", "precision", "custom_op_namespaces")
"""Fields that change nothing here: files are always written in the background, sums are always taken in float64, and
operators of every namespace are seen.
"""

MAX_RANGE = 1_000_000
"""Largest number of steps or ranks that one range may have: each is stored."""

INSTEAD = {
    "dump_enable": "Leave it out, and call start() and stop() around what is to be recorded.",
    "load": "Leave it out; recorded inputs cannot be put into a later run.",
    "tensor_list": "Leave it out, or record with task 'tensor' and the names in 'list'.",
    "slice": "Leave it out; whole tensors are recorded.",
    "request_id": "Leave it out; whole tensors are recorded.",
    "bench_path": "Leave it out, and record both runs with summary_mode 'md5'.",
    "diff_nums": "Leave it out, and record both runs with summary_mode 'md5'.",
    "device": "Leave it out; statistics are taken where the tensor is.",
    "file_format": "Leave it out; tensors are stored as safetensors.",
}
"""Fields that msProbe knows and this does not, and what to do."""


@dataclass(frozen=True)
class Settings:
    """What a config.json asks for. ``ranks`` and ``steps`` are None for all; ``listed`` and ``scope`` are its texts."""

    dump_path: str
    level: str
    depth: Depth
    phases: tuple[Phase, ...]
    ranks: frozenset[int] | None
    steps: frozenset[int] | None
    stacks: bool
    listed: tuple[str, ...]
    scope: tuple[str, str] | None

    @property
    def preset(self) -> Preset:
        """What of Trueline's records at this level."""
        return PRESETS[self.level]

    def wants(self, step: int) -> bool:
        """Whether ``step`` is to be recorded."""
        return self.steps is None or step in self.steps


def read_config(path: str | None) -> dict[str, Any]:
    """The object in the JSON file at ``path``; empty, as msProbe's defaults are ours, without one."""
    if path is None:
        return {}
    if not isinstance(path, str):
        raise InputError(f"config_path is {shown(path)}. Pass the path of a JSON file as text.")
    file = Path(path)
    if not os.path.isfile(path):
        raise InputError(f"There is no config file '{shortened(path)}'. Pass the path of msProbe's config.json.")
    try:
        content = parsed(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Config file '{path}' cannot be parsed: {why(error)}. Expected JSON.") from None
    if not isinstance(content, dict):
        raise InputError(f"Config file '{path}' holds a {type(content).__name__}, expected an object of fields.")
    return content


def settings_of(
    config: Mapping[str, Any],
    *,
    task: str | None = None,
    dump_path: str | None = None,
    level: str | None = None,
    step: list[int | str] | None = None,
) -> Settings:
    """What ``config`` asks for, in which the arguments take the place of the fields of the same names.

    Raises ``InputError`` that names the first field, or value, that is not supported, and what would be valid.
    """
    require_known(config, (*GENERAL, *NO_MATTER, "risk_level", *SECTIONS), "")
    _require_risk(config.get("risk_level"))
    task = _one_of("task", task or config.get("task") or "statistics", TASKS)
    level = _one_of("level", level or config.get("level") or ("mix" if task == "structure" else "L1"), tuple(PRESETS))
    section = config.get(task) or {}
    if not isinstance(section, dict):
        raise InputError(f"Field '{task}' is {shown(section)}. Expected an object of fields.")
    require_known(section, ("scope", "list", "data_mode", "summary_mode"), f"{task}.")
    scope = _texts(section, "scope", task)
    if len(scope) not in (0, 2):
        raise InputError(f"Field '{task}.scope' has {len(scope)} names. Expected none, or the first and the last.")
    summary = _one_of(f"{task}.summary_mode", section.get("summary_mode") or "statistics", tuple(DEPTHS))
    where = dump_path or config.get("dump_path") or "./dump_path"
    if not isinstance(where, str):
        raise InputError(f"Field 'dump_path' is {shown(where)}. Expected the path of a directory, as text.")
    return Settings(
        dump_path=where,
        level=level,
        depth=DEPTHS[summary] if task == "statistics" else "tensor" if task == "tensor" else "structure",
        phases=_phases(_texts(section, "data_mode", task), level, task),
        ranks=numbers("rank", config.get("rank")),
        steps=numbers("step", config.get("step") if step is None else step),
        stacks=flag(config, "extra_info", default=True),
        listed=_texts(section, "list", task),
        scope=(scope[0], scope[1]) if scope else None,
    )


def require_known(fields: Mapping[str, Any], valid: Collection[str], prefix: str) -> None:
    """Raise ``InputError`` for a field that is not in ``valid``; names are told with ``prefix``."""
    for name, value in fields.items():
        if name in valid or (name in INSTEAD and value in (None, [], {}, "")):
            continue
        if name in INSTEAD:
            raise InputError(f"Field '{prefix}{name}' is not supported. {INSTEAD[name]}")
        near = difflib.get_close_matches(name, valid, n=1)
        hint = f"Did you mean '{prefix}{near[0]}'? " if near else ""
        raise InputError(f"Field '{prefix}{name}' is unknown. {hint}Valid are {', '.join(sorted(valid))}.")


def _require_risk(risk: object) -> None:
    if risk not in (None, "ALL"):
        raise InputError(
            f"Field 'risk_level' is {shown(risk)}, which is not supported: every call is recorded. Leave it out, or "
            "choose calls by name in 'list'."
        )


def _one_of(name: str, value: object, valid: tuple[str, ...]) -> str:
    if value not in valid:
        raise InputError(f"Field '{name}' is {shown(value)}, which is not supported. Valid are {', '.join(valid)}.")
    return str(value)


def flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A field that is true or false. Raises ``InputError`` for another value."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"Field '{name}' is {shown(value)}. Expected true or false.")
    return value


def _texts(section: Mapping[str, Any], name: str, task: str) -> tuple[str, ...]:
    value = section.get(name) or []
    if not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise InputError(f"Field '{task}.{name}' is {shown(value)}. Expected a list of texts.")
    return tuple(value)


def _phases(modes: tuple[str, ...], level: str, task: str) -> tuple[Phase, ...]:
    """Phases of ``level`` that the data modes leave."""
    for mode in modes:
        _one_of(f"{task}.data_mode", mode, DATA_MODES)
    if "all" in modes and len(modes) > 1:
        raise InputError(f"Field '{task}.data_mode' is {list(modes)}: 'all' stands alone. Leave out the others.")
    if len({"input", "output"} & {*modes}) == 1:
        raise InputError(
            f"Field '{task}.data_mode' is {list(modes)}, which is not supported: inputs and outputs are recorded "
            "together. Valid are all, forward, backward."
        )
    forward, backward = "forward" in modes, "backward" in modes
    if forward == backward:
        return PHASES[level]
    return tuple(phase for phase in PHASES[level] if (phase in BACKWARD) == backward)


def numbers(name: str, value: object) -> frozenset[int] | None:
    """The whole numbers of a list as ``[0, "4-6"]``; None for an empty one."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise InputError(f"Field '{name}' is {shown(value)}. Expected a list of whole numbers and ranges like \"4-6\".")
    whole_numbers: set[int] = set()
    for entry in value:
        ends = re.fullmatch(r"(\d{1,9})-(\d{1,9})", entry) if isinstance(entry, str) else None
        if ends is not None and int(ends[1]) <= int(ends[2]) < int(ends[1]) + MAX_RANGE:
            whole_numbers.update(range(int(ends[1]), int(ends[2]) + 1))
        elif isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
            whole_numbers.add(entry)
        else:
            raise InputError(
                f"Field '{name}' holds {shown(entry)}. Expected whole numbers from 0, or ranges like \"4-6\" of at "
                f"most {MAX_RANGE:,} numbers."
            )
    return frozenset(whole_numbers)
