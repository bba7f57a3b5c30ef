"""Read what torch.save wrote, and the state dicts in it as named tensors. Nothing that a file holds is executed."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.reading import require_room, why
from trueline.store.importers.checkpoint_weights import Weight
from trueline.store.importers.step_rows import slot_part

CONTAINERS = frozenset({"app", "model", "module", "state_dict", "model_state", "model_state_dict", "params"})
"""Keys under which scripts keep the state dict of the model; they are no part of the names of its parameters."""

MAX_VALUES = 1_000
"""Plain values that are kept: a file may hold the state of a data loader, with an entry for every sample."""

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def read_file(path: str) -> Any:
    """The object in a file of torch.save, its tensors in host memory. Raises ``InputError``."""
    _require_kind(path)
    try:
        return load(path)
    except pickle.UnpicklingError as error:
        match = _GLOBAL.search(str(error))
        content = f"an object of {match[1]}" if match else "more than tensors, or is damaged"
        raise InputError(
            f"'{path}' holds {content}, and nothing but tensors and plain containers is read from a file. Save the "
            "state dicts alone."
        ) from None
    except Exception as error:
        raise InputError(f"'{path}' cannot be read as a file of torch.save: {why(error)}. Copy it again.") from None


def load(path: str) -> Any:
    """What ``torch.load`` makes of a file that has room for all that it declares. Raises as that does, and
    ``ValueError``.
    """
    import torch

    held_bytes, mapped = os.path.getsize(path), zipfile.is_zipfile(path)
    if mapped:
        with zipfile.ZipFile(path) as archive:  # torch.save compresses nothing, and torch.load inflates any size
            require_room(sum(entry.file_size for entry in archive.infolist()), held_bytes)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    require_sizes(content, held_bytes)
    return content


def require_sizes(content: Any, held_bytes: int) -> None:
    """Raise ``ValueError`` where what was made of a file of ``held_bytes`` is more than it can hold: views that repeat
    a few bytes without end, or lists that hold each other.
    """
    sizes: dict[Hashable, int] = {}
    for number, (path, _, _, _, x) in enumerate(_walk((), content)):
        if number > held_bytes:
            raise ValueError(f"it has more entries than its {held_bytes:,} bytes can hold")
        if _is_tensor(x):
            sizes[_memory(x) or path] = x.numel() * x.element_size()
    require_room(sum(sizes.values()), held_bytes)


@dataclass(frozen=True)
class State:
    """The tensors of state dicts; ``values`` are plain numbers and texts between them by path, ``others`` the paths of
    all else.
    """

    weights: list[Weight]
    values: dict[str, Any]
    unread_paths: list[str]

    @property
    def facts(self) -> dict[str, Any]:
        """The plain values, for the manifest's source."""
        return {"values": self.values} if self.values else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """One line on what was left out, if anything was."""
        if not self.unread_paths:
            return ()
        more = f" and {len(self.unread_paths) - 5} more" if len(self.unread_paths) > 5 else ""
        entries = f"Entries that are neither tensors nor plain values ({len(self.unread_paths)})"
        return (f"{entries} were left out: {', '.join(self.unread_paths[:5])}{more}.",)


def _require_kind(path: str) -> None:
    """Raise ``InputError`` for a file that is neither a zip nor a pickle, which the files of torch.save are."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}. Check its permissions.") from None
    if not start.startswith((b"PK", b"\x80")):
        raise InputError(f"'{path}' is no file of torch.save, and does not end in .safetensors. Pass a checkpoint.")


def state_weights(document: Any) -> State:
    """The tensors and values in nested dicts and lists.

    A dict with ``state`` and ``param_groups`` is the state dict of an optimizer (phase opt): its parameters go by name
    where it has their names, else by number.

    Of two tensors with the same name, as of two models in one file, the later has its whole path for a name.
    """
    state = State([], {}, [])
    used_names: set[tuple[str, str, str]] = set()
    for path, phase, name, slot, x in _walk((), document):
        if not _is_tensor(x):
            if isinstance(x, bool | int | float | str | None) and len(state.values) < MAX_VALUES:
                state.values[".".join(path)] = x
            else:
                state.unread_paths.append(".".join(path))
            continue
        if (phase, name, slot) in used_names:
            name = ".".join(path)
        used_names.add((phase, name, slot))
        state.weights.append(Weight(phase, name, slot, lambda x=x: x, memory=_memory(x)))
    return state


def _walk(path: tuple[str, ...], node: Any) -> Iterator[tuple[tuple[str, ...], str, str, str, Any]]:
    """(path, phase, name, slot, value) of every leaf."""
    if isinstance(node, Mapping) and isinstance(node.get("state"), Mapping) and "param_groups" in node:
        yield from _walk_optimizer(path, node)
    elif isinstance(node, Mapping | list | tuple):
        for key, inner in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _walk((*path, str(key)), inner)
    else:
        yield path, "param", _name(path), "value", node


def _walk_optimizer(path: tuple[str, ...], node: Mapping[Any, Any]) -> Iterator[tuple[Any, ...]]:
    names = _parameter_names(node["param_groups"])
    for number, state in node["state"].items():
        name = names.get(number) or (number if isinstance(number, str) else f"state.{number}")
        for inner, _, _, _, value in _walk((), state):
            slot = ".".join(map(slot_part, inner)) or "value"
            yield (*path, "state", str(number), *inner), "opt", str(name), slot, value
    for inner, _, _, _, value in _walk((), node["param_groups"]):
        yield (*path, "param_groups", *inner), "opt", "param_groups", ".".join(map(slot_part, inner)) or "value", value


def _parameter_names(groups: Any) -> dict[Any, str]:
    """Names by number, where an optimizer was made with named parameters."""
    names: dict[Any, str] = {}
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping) and isinstance(group.get("param_names"), list):
            names |= dict(zip(group.get("params", ()), map(str, group["param_names"]), strict=False))
    return names


def _name(path: tuple[str, ...]) -> str:
    first = next((index for index, part in enumerate(path) if part not in CONTAINERS), len(path))
    return ".".join(path[first:]) or ".".join(path)


def _is_tensor(x: Any) -> bool:
    import torch

    return isinstance(x, torch.Tensor)


def _memory(x: Any) -> Hashable | None:
    """Identifies the memory of a tensor, which two names may share; None where it has no memory of its own."""
    try:
        start = x.data_ptr() if x.numel() else 0
        return (start, x.dtype, tuple(x.shape), x.stride()) if start else None
    except RuntimeError:  # a layout without one, as of sparse tensors
        return None
