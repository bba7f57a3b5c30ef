"""A checkpoint of torch.distributed.checkpoint (DCP), whole tensors put together from the shards, without any rank.

Its ``.metadata`` is a pickle, which torch reads with no limits: here only the classes that it consists of are let in.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.reading import reading, require_room, shown, why
from trueline.store.importers.checkpoint_weights import Checkpoint
from trueline.store.importers.torch_files import state_weights

METADATA = ".metadata"

_METADATA = "torch.distributed.checkpoint.metadata"
_NAMES = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "collections": ("OrderedDict",),
    "pathlib": ("PosixPath", "PurePosixPath"),
}


_UNREAD = object()


def is_dcp(folder: str) -> bool:
    """True if a directory is a checkpoint of DCP."""
    return os.path.isfile(os.path.join(folder, METADATA))


def read_dcp(folder: str) -> Checkpoint:
    """Its tensors. Raises ``InputError`` where a file is damaged or missing."""
    metadata = _read_metadata(os.path.join(folder, METADATA))
    with reading(f"'{folder}', a distributed checkpoint,", "Copy it again."):
        _require_room(folder, metadata)
        tensors = _load(folder, metadata)
        state = state_weights(_nested(metadata, tensors))
    return Checkpoint(state.weights, {"format": "dcp", "path": os.path.abspath(folder)} | state.facts, state.notes)


def _require_room(folder: str, metadata: Any) -> None:
    """Raise ``ValueError`` for a file outside of ``folder``, or tensors larger than all files together can hold."""
    outside = [
        path
        for entry in (metadata.storage_data or {}).values()
        if os.path.isabs(path := os.fspath(entry.relative_path)) or os.pardir in path.split(os.sep)
    ]
    if outside:
        raise ValueError(f"it has data in {shown(outside[0])}, which is not inside of it")
    entries = [entry for entry in metadata.state_dict_metadata.values() if hasattr(entry, "size")]
    needed_bytes = sum(math.prod(entry.size) * entry.properties.dtype.itemsize for entry in entries)
    require_room(needed_bytes, sum(file.stat().st_size for file in os.scandir(folder)))


def _load(folder: str, metadata: Any) -> dict[str, Any]:
    """All tensors by flat key."""
    import torch
    import torch.distributed.checkpoint as dcp

    class Reader(dcp.FileSystemReader):
        """Reads what was let in above instead of unpickling the metadata again."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return metadata

    entries = metadata.state_dict_metadata.items()
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in entries if hasattr(entry, "size")
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load(tensors, storage_reader=Reader(folder), no_dist=True)
    return tensors


def _nested(metadata: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict as it was saved, with a placeholder for what is no tensor: that is pickled, and not read."""
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    whole: dict[str, Any] = {}
    for key in metadata.state_dict_metadata:
        path = paths.get(key) or (key,)
        inside = whole
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = tensors.get(key, _UNREAD)
    return whole


def _read_metadata(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            metadata = _Unpickler(io.BytesIO(file.read())).load()
    except pickle.UnpicklingError as error:
        raise InputError(f"'{path}' is damaged or holds what no checkpoint has: {error}. Copy it again.") from None
    except Exception as error:
        raise InputError(f"'{path}' cannot be read: {why(error)}. Copy the checkpoint again.") from None
    if not isinstance(getattr(metadata, "state_dict_metadata", None), Mapping):
        raise InputError(f"'{path}' is not the metadata of a distributed checkpoint. Pass the directory of one.")
    return metadata


class _Unpickler(pickle.Unpickler):
    """Lets in the classes of DCP's metadata and torch's dtypes, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(member := getattr(torch, name, None), torch.dtype):
            return member
        if module == _METADATA and "." not in name and isinstance(member := super().find_class(module, name), type):
            return member
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")
