"""The tensors of safetensors files, one file or shards with an index (huggingface/safetensors), mapped from disk."""

from __future__ import annotations

import functools
import glob
import os
from typing import Any

import numpy as np

from trueline.schema.errors import InputError
from trueline.store.importers.checkpoint_weights import Weight
from trueline.store.importers.json_files import read_object
from trueline.store.importers.torch_values import TORCH_NAMES, as_tensor
from trueline.store.records.tensor_files import DamagedTensors, read_header, read_value

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"


def read_file(path: str) -> list[Weight]:
    """The tensors of one file as parameters, by name. Raises ``InputError`` where it is damaged."""
    content, header = _open(path)
    names = sorted(name for name in header if name != "__metadata__")
    unknown = sorted({header[name]["dtype"] for name in names} - set(TORCH_NAMES))
    if unknown:
        raise InputError(
            f"'{path}' holds tensors of {', '.join(unknown)}, which cannot be imported. Known: "
            f"{', '.join(TORCH_NAMES)}."
        )
    return [Weight("param", name, "value", functools.partial(_tensor, path, content, name)) for name in names]


def read_folder(folder: str) -> list[Weight]:
    """The tensors of the shards in a directory, those that its index names or, without one, all.

    Raises ``InputError`` where a shard is missing or damaged, or two have a tensor of one name.
    """
    indices = sorted(glob.glob(os.path.join(glob.escape(folder), f"*{INDEX_SUFFIX}")))
    if len(indices) > 1:
        names = ", ".join(map(os.path.basename, indices))
        raise InputError(f"'{folder}' holds {len(indices)} indices ({names}). Pass one file, or a directory with one.")
    if indices:
        return _by_index(folder, indices[0])
    by_name: dict[str, Weight] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*{SUFFIX}"))):
        for weight in read_file(path):
            if weight.name in by_name:
                raise InputError(
                    f"'{path}' holds '{weight.name}', which another file of '{folder}' holds too, and there is no "
                    f"index. Pass one file."
                )
            by_name[weight.name] = weight
    return list(by_name.values())


def has_shards(folder: str) -> bool:
    """True if there are safetensors files in a directory."""
    return any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in os.listdir(folder))


def shards_of(folder: str, index: str) -> dict[str, list[str]]:
    """The names of tensors by shard, as an index has them; every shard is there. Raises ``InputError``."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise InputError(f"'{index}' has no 'weight_map' of names to files, so it is no index. Download it again.")
    shards: dict[str, list[str]] = {}
    for name, file in names.items():
        shards.setdefault(os.path.join(folder, os.path.basename(file)), []).append(name)
    missing = sorted(os.path.basename(path) for path in shards if not os.path.isfile(path))
    if missing:
        raise InputError(
            f"{len(missing)} of {len(shards)} files that '{index}' names are not there: {', '.join(missing[:3])}. "
            "Complete the directory."
        )
    return shards


def require_names(path: str, names: list[str], present: set[str]) -> None:
    """Raise ``InputError`` where a shard lacks a tensor that the index says it has."""
    absent = sorted(set(names) - present)
    if absent:
        raise InputError(
            f"'{path}' lacks {len(absent)} of the tensors of its index, such as '{absent[0]}'. Download it again."
        )


def _by_index(folder: str, index: str) -> list[Weight]:
    weights: list[Weight] = []
    for path, names in shards_of(folder, index).items():
        by_name = {weight.name: weight for weight in read_file(path)}
        require_names(path, names, set(by_name))
        weights += [by_name[name] for name in names]
    return sorted(weights, key=lambda weight: weight.name)


def _open(path: str) -> tuple[np.ndarray, dict[str, Any]]:
    try:
        content = np.memmap(path, dtype=np.uint8, mode="c")  # private, as torch warns of memory that is read-only
        return content, read_header(lambda begin, end: content[begin:end], content.size)[0]
    except (DamagedTensors, OSError, ValueError) as error:
        raise InputError(
            f"'{path}' cannot be read as safetensors: {str(error).rstrip('.')}. Copy or download it again."
        ) from None


def _tensor(path: str, content: np.ndarray, name: str) -> Any:
    try:
        return as_tensor(read_value(lambda begin, end: content[begin:end], content.size, name))
    except DamagedTensors as error:
        raise InputError(f"'{path}' cannot be read as safetensors: {error}. Copy or download it again.") from None
