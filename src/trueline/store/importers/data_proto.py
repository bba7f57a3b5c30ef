"""Batches of tensordict, and verl's ``DataProto`` around one, as ``save_to_disk`` and ``torch.save`` leave them.

Both are pickles of objects. Neither verl nor tensordict is asked, and nothing that a file names is called: stand-ins
take what the objects hold, and what is no such object is refused.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.reading import why
from trueline.store.importers.torch_files import require_sizes

_AT = 64
"""Bytes at the start of a pickle in which the name of its class stands."""


def read_batch(path: str) -> dict[str, Any]:
    """The tensors of a batch by name, and columns beside them that are lists; nothing where it is no such file. Raises
    ``InputError`` for one that is damaged.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(_AT)
        if start.startswith(b"\x80") and b"verl.protocol" in start:
            return _of_proto(path)
        return _tensors(path, path) if start.startswith(b"PK") and _names_tensordict(path) else {}
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"'{path}' cannot be read as a batch of verl or tensordict: {why(error)}. Copy it again, or save its "
            "tensors: torch.save(dict(data.batch), path)."
        ) from None


def _names_tensordict(path: str) -> bool:
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return any(b"tensordict" in archive.open(name).read(_AT) for name in pickles)


def _of_proto(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        proto = _Unpickler(file).load()
    parts = proto.state if isinstance(proto, _Object) else None
    if not (isinstance(parts, tuple) and len(parts) == 3 and isinstance(parts[0], bytes)):
        raise InputError(
            f"'{path}' is a DataProto that was saved with VERL_DATAPROTO_SERIALIZATION_METHOD=numpy. Save its tensors: "
            "torch.save(dict(data.batch), path)."
        )
    columns = {name: _list_of(value) for name, value in parts[1].items()}
    return {name: value for name, value in columns.items() if value is not None} | _tensors(io.BytesIO(parts[0]), path)


def _tensors(source: Any, path: str) -> dict[str, Any]:
    import torch

    stand_ins: list[Any] = [
        (_of_consolidated, "tensordict._reductions._rebuild_tensordict_files_consolidated"),
        (_of_state, "tensordict._reductions._make_td"),
        (_Object, "tensordict._td.TensorDict"),
    ]
    with torch.serialization.safe_globals(stand_ins):
        content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise pickle.UnpicklingError("it holds no batch")
    require_sizes(content, os.path.getsize(path))
    return {str(name): value for name, value in content.items()}


def _of_consolidated(metadata: Any, storage: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The tensors that lie one behind the other in the bytes ``storage``."""
    import torch

    tensors: dict[str, Any] = {}
    for name, (dtype, shape, start, stop, *_) in metadata["leaves"].items():
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        tensors[name] = storage[start:stop].view(kind)[: _size(shape)].reshape(list(shape))
    return tensors


def _size(shape: Any) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size


def _of_state(kind: Any, state: Any) -> dict[str, Any]:
    """The tensors of what was not consolidated."""
    return dict(state["_tensordict"])


class _Object:
    """Stands for an object of a file: what it was made of, and the state that it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_KNOWN = {
    ("verl.protocol", "DataProto"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Object]:
        if (module, name) in _KNOWN:
            return _Object
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is no part of a batch")


def _list_of(value: Any) -> list[Any] | None:
    """The elements of an array of objects of one dimension; None for anything else."""
    state = value.state if isinstance(value, _Object) else None
    return state[-1] if isinstance(state, tuple) and state and isinstance(state[-1], list) else None
