"""One operation called again with the inputs that it had: as it was, in float64 on the CPU, by other kernels, or with
what each kernel returns rounded. It needs torch and nothing else: it is a part of the file that proves an operation.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Call = Mapping[str, Any]
"""The key ``call`` of ``expected.json``: ``function``, ``args``, ``kwargs``, ``in_place``, ``autocast`` (a dtype or
None) and ``gradients``, which are ``given`` to its outputs and ``wanted`` of its inputs (None: no backward)."""
Values = dict[str, Tensor]

_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_DEVICE = re.compile(r"(cpu|cuda|npu|xpu|mps|hpu)(:\d+)?")
_TORCH_NAME = re.compile(r"torch\.\w+")
_CASTS = frozenset({"float", "half", "bfloat16", "double"})


class Impossible(Exception):
    """Why the operation cannot be called, as a sentence."""


def read_safetensors(path: Path) -> Values:
    """The tensors of a safetensors file by name. Raises ``Impossible`` where it is none."""
    try:
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        values: Values = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            data_bytes = bytearray(data[8 + length + begin : 8 + length + end])
            dtype = getattr(torch, _TYPES[entry["dtype"]])
            flat = torch.frombuffer(data_bytes, dtype=dtype) if data_bytes else torch.empty(0, dtype=dtype)
            values[name] = flat.reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, struct.error) as error:
        raise Impossible(f"'{path}' cannot be read ({error}). Copy it again.") from None
    return values


def laid_out(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """A copy of ``x`` with these strides; None: row by row."""
    if strides is None or not x.numel():
        return x.contiguous().clone()
    # a dim of stride 0 holds one number, which as_strided may be written through once only
    once = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    length = 1 + sum((size - 1) * stride for size, stride in zip(once.shape, strides, strict=True))
    memory = torch.zeros(length, dtype=x.dtype, device=x.device)
    memory.as_strided(once.shape, strides).copy_(once)
    return memory.as_strided(x.shape, strides)


def function_named(path: str) -> Callable[..., Any]:
    """The function of torch at ``path``. Raises ``Impossible`` where there is none."""
    parts = path.split(".")
    function: Any = torch
    if parts[0] != "torch":
        parts = ["torch", "ops", *parts]  # a custom operator: "name::op" is recorded as name.op
    getter = parts[-1] == "__get__"
    for part in parts[1 : -1 if getter else None]:
        inner = getattr(function, part, None)
        function = getattr(function, f"_{part}", None) if inner is None else inner
    if getter and hasattr(function, "__get__"):
        return function.__get__
    if not callable(function):
        raise Impossible(f"There is no '{path}' in torch {torch.__version__}. Import what defines it with --import.")
    return function


class Decomposed(TorchDispatchMode):
    """Replaces kernels by torch's own decompositions of them into others: one that is wrong in float64 too is not the
    measure of itself then.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` returns, by its decomposition where there is one."""
        return _decompositions().get(func, func)(*args, **(kwargs or {}))


class Rounded(TorchDispatchMode):
    """Rounds what each kernel returns in float64 to ``dtype``, as what it leaves for the next one is: a backward that
    subtracts nearly equal numbers makes more of these roundings than of those of the inputs.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` returns, rounded where it computed it."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (tuple, list)):
            return type(result)(map(self._rounded, result))
        return self._rounded(result) if not func._schema.is_mutable else result

    def _rounded(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype is not torch.float64 or x._is_view():
            return x
        return x.to(self._dtype).double()


def has_decomposition(path: str) -> bool:
    """Whether torch knows another form of the operator at ``path``."""
    packet = function_named(path)
    overloads = (
        [getattr(packet, overload) for overload in packet.overloads()] if hasattr(packet, "overloads") else [packet]
    )
    return any(known_overload in _decompositions() for known_overload in overloads)


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    try:
        importlib.import_module("torch._refs")  # which fills the table
        from torch._decomp import decomposition_table

        return decomposition_table
    except ImportError:  # of a torch that has them elsewhere
        return {}


def outcomes(call: Call, inputs: Values, *, exact: bool = False, decomposed: str = "") -> Values:
    """What the call makes of copies of ``inputs``, by slot: ``out0``, ...; of an input that it changes, the slot of
    that; and of ``gradients`` what its backward gives, ``grad of in0``. ``exact``: in float64 on the CPU;
    ``decomposed``: the pass, "forward" or "backward", that ``Decomposed`` is on for. Not both: what a decomposed
    forward keeps for backward need not be what the backward kernel of another form takes.

    Raises ``Impossible`` where it cannot be called.
    """
    copies = {slot: _copy(x, exact=exact) for slot, x in inputs.items()}
    arriving = {} if call["gradients"] is None else call["gradients"]["given"]
    for slot in () if not arriving else call["gradients"]["wanted"]:
        copies[slot].requires_grad_()
    device = next((x.device.type for x in copies.values()), "cpu")
    function = function_named(call["function"])
    if exact and call["function"].rpartition(".")[2].strip("_") in _CASTS:
        function = Tensor.double
    before = {slot: x.detach().clone() for slot, x in copies.items()} if call["in_place"] else {}
    try:
        args = [_argument(argument, copies, device, exact=exact) for argument in call["args"]]
        kwargs = {name: _argument(argument, copies, device, exact=exact) for name, argument in call["kwargs"].items()}
        # JSON has no tuple, and x[[0, 1]] is no x[0, 1]
        if call["function"].endswith(("getitem__", "setitem__")) and isinstance(args[1], list):
            args[1] = tuple(args[1])
        with contextlib.ExitStack() as stack:
            if not arriving:
                stack.enter_context(torch.no_grad())
            # autocast would round what is to be exact
            if call["autocast"] and not exact:
                stack.enter_context(torch.autocast(device, getattr(torch, call["autocast"])))
            with Decomposed() if decomposed == "forward" else contextlib.nullcontext():
                returned = function(*args, **kwargs)
        results = dict(_by_slot(returned, copies, call["in_place"]))
        if not call["in_place"] and not exact:
            results = _computed(results, copies)
        if arriving:
            with Decomposed() if decomposed == "backward" else contextlib.nullcontext():
                results |= _gradients(results, arriving, call["gradients"]["wanted"], inputs, copies, exact=exact)
    except Impossible:
        raise
    except Exception as error:  # whatever a kernel raises
        raise Impossible(f"{call['function']} raises {type(error).__name__}: {str(error).splitlines()[0]}") from None
    changed = {slot: x for slot, x in copies.items() if slot in before and not torch.equal(before[slot], x)}
    result_ids = {id(x) for x in results.values()}
    return {
        slot: x.detach()
        for slot, x in (results | {k: x for k, x in changed.items() if id(x) not in result_ids}).items()
    }


def _copy(x: Tensor, *, exact: bool) -> Tensor:
    if not exact:
        return laid_out(x, None if x.is_contiguous() else x.stride())
    x = x.cpu()
    return x.double() if x.is_floating_point() else x.to(torch.complex128) if x.is_complex() else x.clone()


def _argument(text: Any, copies: Values, device: str, *, exact: bool) -> Any:
    """The argument that stands in ``expected.json``."""
    if isinstance(text, list):
        return [_argument(item, copies, device, exact=exact) for item in text]
    if isinstance(text, dict):
        if text.keys() == {"in"}:
            if text["in"] not in copies:
                raise Impossible(f"The tensor '{text['in']}' is not among the inputs.")
            return copies[text["in"]]
        if text.keys() == {"slice"}:
            return slice(*text["slice"])
        if text.get("type") == "Ellipsis":
            return ...
        if text.keys() == {"type"}:
            raise Impossible(f"An argument of {text['type']} was not recorded.")
        return {name: _argument(item, copies, device, exact=exact) for name, item in text.items()}
    if not isinstance(text, str):
        return text
    if _DEVICE.fullmatch(text):
        return "cpu" if exact else device
    if text in ("inf", "-inf", "nan"):
        return float(text)
    attribute = getattr(torch, text[6:], None) if _TORCH_NAME.fullmatch(text) else None
    if isinstance(attribute, torch.dtype) and attribute.is_floating_point and exact:
        return torch.float64
    return text if attribute is None else attribute


def _by_slot(returned: Any, copies: Values, in_place: bool) -> Iterator[tuple[str, Tensor]]:
    if returned is None and in_place:
        returned = [x for slot, x in copies.items() if slot.partition(".")[0] == "in0"]
    if isinstance(returned, Tensor):
        returned = [returned]
    if not isinstance(returned, (list, tuple)):
        raise Impossible(f"It returns {type(returned).__name__}, and no tensors.")
    for index, x in enumerate(returned):
        if isinstance(x, Tensor):
            yield f"out{index}", x
        elif isinstance(x, (list, tuple)):
            yield from ((f"out{index}.{offset}", item) for offset, item in enumerate(x) if isinstance(item, Tensor))


def _computed(results: Values, copies: Values) -> Values:
    """Without what only shows the memory of an input in another way. Raises ``Impossible`` where nothing is left."""
    memory = {x.untyped_storage().data_ptr() for x in copies.values() if x.numel()}
    computed = {slot: x for slot, x in results.items() if x.untyped_storage().data_ptr() not in memory}
    if results and not computed:
        raise Impossible("It returns a view of its input, and computes nothing.")
    return computed


def _gradients(
    results: Values,
    arriving_slots: Mapping[str, str],
    input_slots: list[str],
    inputs: Values,
    copies: Values,
    *,
    exact: bool,
) -> Values:
    outs = {slot: x for slot, x in results.items() if slot in arriving_slots and x.requires_grad}
    arriving = [_copy(inputs[arriving_slots[slot]], exact=exact).to(x.dtype) for slot, x in outs.items()]
    if not outs:
        return {}
    gradients = torch.autograd.grad(
        list(outs.values()), [copies[slot] for slot in input_slots], arriving, allow_unused=True
    )
    return {f"grad of {slot}": x for slot, x in zip(input_slots, gradients, strict=True) if x is not None}


def inputs_of(document: Mapping[str, Any], tensors: Values, device: str) -> Values:
    """The inputs of ``expected.json`` on ``device``, with their strides."""
    return {
        slot: laid_out(tensors[slot].to(device), None if entry["strides"] is None else tuple(entry["strides"]))
        for slot, entry in document["inputs"].items()
    }
