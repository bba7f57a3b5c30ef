"""Read what msProbe wrote of the values of a call: slots, statistics and arguments, as the recorder has them. Pure.

msProbe takes ``Max``, ``Min``, ``Mean`` and ``Norm`` over all elements and in the dtype of the tensor
(``PytorchDataProcessor.get_stat_info`` of mindstudio-probe 26.2.0): no mean and norm of float64, integers and bools;
of complex numbers those of their magnitudes; of a 0-dim tensor the value itself four times.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueline.schema.columns.records import Unmeasured
from trueline.store.importers.msprobe.names import DumpKey
from trueline.store.importers.msprobe.signatures import SIGNATURES
from trueline.store.importers.step_rows import UNKNOWN, Measured, slot_part

ROUNDED = "from msProbe: sums are of its rounded mean and norm, NaN and infinities were not counted"
NOT_FINITE = f"from msProbe: Max {{Max}}, Min {{Min}}; {Unmeasured.UNCOUNTED}"
MAGNITUDES = "from msProbe: its statistics of complex numbers are of magnitudes, and were left out"
NO_NUMBERS = "from msProbe, which did not measure it"

MAX_FRAMES = 32
"""Frames that a stack keeps, as the recorder does."""

_FRAME = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<function>[^,]+),")
_LIBRARY_FILE = re.compile(r"/(site|dist)-packages/(torch|torch_npu|msprobe)/")

Leaf = Mapping[str, Any]
"""The entry of one tensor in dump.json."""


def is_leaf(node: object) -> bool:
    """True if a node of dump.json is a tensor."""
    if not isinstance(node, dict) or not isinstance(node.get("shape"), list):
        return False
    return str(node.get("dtype", "")).startswith("torch.")


def forward_inputs(key: DumpKey, entry: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """(slot, tensor) of what a forward call was given."""
    for index, node in enumerate(_list_or_empty(entry.get("input_args"))):
        yield from _open(_slot(key, index), node)
    for name, node in _mapping_or_empty(entry.get("input_kwargs")).items():
        yield from _open(_slot(key, name), node)


def forward_outputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """(slot, tensor) of what a forward call returned. Of a list msProbe makes a tuple of that one list."""
    nodes = _list_or_empty(entry.get("output"))
    if len(nodes) == 1 and isinstance(nodes[0], list):
        nodes = nodes[0]
    elif len(nodes) == 1 and isinstance(nodes[0], dict) and not is_leaf(nodes[0]):
        yield from _open("out", nodes[0])
        return
    for index, node in enumerate(nodes):
        yield from _open(f"out{index}", node)


def collective_values(entry: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """(slot, tensor) of a collective: msProbe has its arguments before and after it, of which the recorder takes the
    last one with tensors as what went in, and the first as what came out.
    """
    before = [list(_open("", node)) for node in _all_arguments(entry.get("input_args"), entry.get("input_kwargs"))]
    after = [list(_open("", node)) for node in _list_or_empty(entry.get("output"))]
    for side, leaves in (
        ("in", [group for group in before if group][-1:]),
        ("out", [group for group in after if group][:1]),
    ):
        for index, (_, leaf) in enumerate(leaves[0] if leaves else ()):
            yield f"{side}{index}", leaf


def output_gradients(entry: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """(slot, tensor) of the gradients of what a call returned, which its backward pass was given."""
    for index, node in enumerate(_list_or_empty(entry.get("input"))):
        yield from _open(f"out{index}", node)


def backward_outputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """(slot, tensor) of what a backward pass returned: of a module the gradients of its arguments through this call
    alone; of a function what the last node of autograd that it made handed on, which need not be the gradient of any
    of its arguments. (The recorder has the gradients of tensors, with what came through all calls.)
    """
    for index, node in enumerate(_list_or_empty(entry.get("output"))):
        yield from _open(f"out{index}", node)


def arguments(key: DumpKey, entry: Mapping[str, Any]) -> str:
    """JSON of the arguments, as the column ``args`` has it."""
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    items = [*enumerate(_list_or_empty(entry.get("input_args"))), *_mapping_or_empty(entry.get("input_kwargs")).items()]
    for name, node in items:
        slot = _slot(key, name)
        (positional if slot.removeprefix("in").isdigit() else keywords)[slot] = _plain(slot, node)
    order = sorted(positional, key=lambda slot: int(slot.removeprefix("in")))
    return json.dumps({"args": [positional[slot] for slot in order], "kwargs": keywords}, separators=(",", ":"))


def backward_arguments(num_gradients: int) -> str:
    """The column ``args`` of a backward pass."""
    plain = {"args": [{"in": f"in{index}"} for index in range(num_gradients)], "kwargs": {}}
    return json.dumps(plain, separators=(",", ":"))


def measured(leaf: Leaf) -> Measured:
    """The numbers that msProbe took of a tensor, and its checksum as fingerprint."""
    dtype = str(leaf["dtype"])
    # real and imaginary parts are numbers of their own
    count = math.prod(leaf["shape"]) * (2 if "complex" in dtype else 1)
    fingerprint = _checksum(leaf.get("md5"))
    low, high = _number(leaf.get("Min")), _number(leaf.get("Max"))
    if low is None or high is None:
        return Measured(count, None, fingerprint, None if fingerprint is not None else NO_NUMBERS)
    if "complex" in dtype:
        return Measured(count, None, fingerprint, MAGNITUDES)
    # msProbe's mean and norm are then over all elements, and say nothing of the finite ones
    if not (math.isfinite(low) and math.isfinite(high)):
        return Measured(count, UNKNOWN, fingerprint, NOT_FINITE.format(Max=high, Min=low))
    mean, norm = _number(leaf.get("Mean")), _number(leaf.get("Norm"))
    total = math.nan if mean is None else mean * count
    square = math.nan if norm is None else norm * norm
    return Measured(
        count,
        (*UNKNOWN[:5], low, high, _finite_or_nan(total), _finite_or_nan(square), *UNKNOWN[9:]),
        fingerprint,
        ROUNDED,
    )


def stack_frames(lines: Sequence[str]) -> tuple[str, ...]:
    """A call stack as the recorder has it, innermost first, without what is torch's or msProbe's own."""
    matches = (_FRAME.match(line) for line in lines)
    frames = [
        f"{match['file']}:{match['line']} {match['function']}"
        for match in matches
        if match and not _LIBRARY_FILE.search(match["file"])
    ]
    return tuple(frames[:MAX_FRAMES])


def is_xor(leaf: Leaf) -> bool:
    """True if its checksum is msProbe's XOR (16 hexadecimal digits) and not its CRC-32 (8)."""
    return str(leaf.get("md5")).startswith("0x")


def _checksum(text: object) -> int | None:
    try:
        return int(text, 16) if isinstance(text, str) else None
    except ValueError:
        return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, bool | int | float) else None


def _finite_or_nan(value: float) -> float:
    """A sum that overflowed is none."""
    return value if math.isfinite(value) else math.nan


def _slot(key: DumpKey, where: int | str) -> str:
    """The slot of an argument. Functions of torch.nn.functional that are written in Python hand some of their
    arguments on by position and others by name, however they were given, and that is what the recorder sees.
    """
    names, num_positional = SIGNATURES.get(key.name, ((), 0)) if key.prefix == "Functional" else ((), 0)
    if isinstance(where, str):
        index = names.index(where) if where in names else num_positional
        return f"in{index}" if index < num_positional else where
    return names[where] if num_positional <= where < len(names) else f"in{where}"


def _open(slot: str, node: Any) -> Iterator[tuple[str, Leaf]]:
    if is_leaf(node):
        yield slot, node
    elif isinstance(node, dict):
        for name, inner in node.items():
            yield from _open(f"{slot}.{slot_part(name)}", inner)
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from _open(f"{slot}.{index}", inner)


def _plain(slot: str, node: Any) -> Any:
    if is_leaf(node):
        return {"in": slot}
    if isinstance(node, list):
        return [_plain(f"{slot}.{index}", inner) for index, inner in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if not isinstance(node.get("type"), str):
        return {name: _plain(f"{slot}.{slot_part(name)}", inner) for name, inner in node.items()}
    if "value" not in node:
        return {"type": node["type"]}
    value = node["value"]
    if node["type"] == "slice":
        return {"slice": value}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _list_or_empty(node: Any) -> Sequence[Any]:
    return node if isinstance(node, list) else ()


def _mapping_or_empty(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else {}


def _all_arguments(positional: Any, keywords: Any) -> list[Any]:
    return [*_list_or_empty(positional), *_mapping_or_empty(keywords).values()]
