"""Where in a directory the dumps of steps and ranks are, and their files, each read or refused in a sentence."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.reading import why
from trueline.store.importers.json_files import read_object
from trueline.store.importers.torch_files import load

DUMP_FILE = "dump.json"
STACK_FILE = "stack.json"
TENSOR_DIR = "dump_tensor_data"

_STEP = re.compile(r"step(\d+)")
_RANK = re.compile(r"rank(\d+)")
_PROCESS = re.compile(r"proc\d+|rank")
"""Where msProbe found no rank, the process takes its place."""

_EXPECTED = "Expected an msProbe dump: step*/rank*/dump.json, or the directory of one step or rank of it."


@dataclass(frozen=True, order=True)
class RankDump:
    """The directory ``path`` with what ``rank`` dumped of ``step``."""

    rank: int
    step: int
    path: str

    @property
    def name(self) -> str:
        return os.path.join(*os.path.abspath(self.path).split(os.sep)[-2:])


def find_dumps(source: str) -> list[RankDump]:
    """The dumps under ``source`` by rank and step, at least one. Raises ``InputError``."""
    if not os.path.isdir(source):
        problem = "is a file" if os.path.exists(source) else "does not exist"
        raise InputError(f"'{source}' {problem}. {_EXPECTED}")
    if os.path.isfile(os.path.join(source, DUMP_FILE)):
        parent, base = os.path.split(os.path.abspath(source))
        return [RankDump(_rank(base) or 0, _step(os.path.basename(parent)) or 0, source)]
    step = _step(os.path.basename(os.path.abspath(source)))
    steps = {_step(name): os.path.join(source, name) for name in os.listdir(source) if _step(name) is not None}
    dumps = [dump for number, path in steps.items() for dump in _of_step(path, number or 0)]
    if not steps:
        dumps = _of_step(source, step or 0)
    if not dumps:
        raise InputError(f"'{source}' holds no dump.json. {_EXPECTED}")
    return sorted(dumps)


def read_dump(dump: RankDump) -> Mapping[str, Any]:
    """What dump.json holds, with ``data``. Raises ``InputError`` where it is damaged, or not of PyTorch."""
    path = os.path.join(dump.path, DUMP_FILE)
    document = read_json(dump.path, DUMP_FILE)
    framework = document.get("framework", "pytorch")
    if framework != "pytorch":
        raise InputError(f"'{path}' is a dump of {framework}. Only dumps of PyTorch can be imported.")
    data = document.get("data")
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        raise InputError(f"'{path}' has no 'data' of calls, so it is no dump of msProbe. {_EXPECTED}")
    return document


def read_json(folder: str, name: str) -> dict[str, Any]:
    """The object in a JSON file of a dump; empty where the file is not there and need not be."""
    path = os.path.join(folder, name)
    try:
        return read_object(path)
    except FileNotFoundError:
        if name != DUMP_FILE:
            return {}
        raise InputError(f"'{path}' is gone. {_EXPECTED}") from None


def read_stacks(dump: RankDump) -> Iterator[tuple[list[str], list[str]]]:
    """(entries, frames) of every call stack; none where msProbe kept none. Raises ``InputError`` for a damaged file.

    A stack stands once, with the entries that share it; older versions wrote it for each entry, under its name.
    """
    for name, pair in read_json(dump.path, STACK_FILE).items():
        if isinstance(pair, list) and all(isinstance(frame, str) for frame in pair):
            yield [name], pair
            continue
        lists = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, list) for part in pair)
        if not lists or not all(isinstance(text, str) for part in pair for text in part):
            path = os.path.join(dump.path, STACK_FILE)
            raise InputError(f"'{path}' holds {reprlib.repr(pair)}, expected a list of entries and one of frames.")
        yield pair[0], pair[1]


def read_value(dump: RankDump, name: str) -> Any:
    """The tensor of a file in dump_tensor_data, in host memory; None where the file is not there: msProbe leaves out
    some layouts. Raises ``InputError`` where it is damaged.
    """
    import torch

    path = os.path.join(dump.path, TENSOR_DIR, os.path.basename(name))
    if not os.path.isfile(path):
        return None
    try:
        x = _array(path) if path.endswith(".npy") else load(path)
    except Exception as error:
        raise InputError(f"'{path}' cannot be read as a tensor: {why(error)}. Copy the dump again.") from None
    if not isinstance(x, torch.Tensor):
        raise InputError(f"'{path}' holds a {type(x).__name__}, expected a tensor. Copy the dump again.")
    return x


def _array(path: str) -> Any:
    """The tensor of an .npy file: mapped, as NumPy would make room for the shape in a header before it reads."""
    import numpy as np
    import torch

    return torch.from_numpy(np.load(path, allow_pickle=False, mmap_mode="c"))


def _of_step(path: str, step: int) -> list[RankDump]:
    """The ranks of a step; the one process of a job without ranks is rank 0."""
    names = [name for name in sorted(os.listdir(path)) if os.path.isfile(os.path.join(path, name, DUMP_FILE))]
    ranks = [RankDump(rank, step, os.path.join(path, name)) for name in names if (rank := _rank(name)) is not None]
    processes = [name for name in names if _PROCESS.fullmatch(name)]
    if len(processes) > 1 or (processes and ranks):
        raise InputError(
            f"'{path}' holds {', '.join(names[:4])}: it is not known which ranks they are. Pass one of these "
            "directories."
        )
    return ranks or [RankDump(0, step, os.path.join(path, name)) for name in processes]


def _step(name: str) -> int | None:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def _rank(name: str) -> int | None:
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None
