"""The names that msProbe gives to modules, calls and gradients, and what the recorder calls the same. Pure.

Written after dumps of mindstudio-probe 26.2.0 and its ``core/common/const.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_MODULE = re.compile(
    r"Module\.(?P<path>.+)\.(?P<kind>[^.]+)\.(?P<way>forward|backward|parameters_grad)(\.(?P<number>\d+))?"
)
_CALL = re.compile(r"(?P<prefix>[A-Z]\w*)\.(?P<function>.+)\.(?P<number>\d+)\.(?P<way>forward|backward)")

_WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Parts of names that DDP, torch.compile, checkpointing and FSDP put in; the recorder leaves them out."""

_IN_PLACE = frozenset({"setitem", "iand", "ior", "ixor"})

_OPERATORS = {
    "__iadd__": "add_",
    "__idiv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__imod__": "remainder_",
    "__imul__": "mul_",
    "__ipow__": "pow_",
    "__isub__": "sub_",
    "__itruediv__": "div_",
    "__mod__": "remainder",
    "__pos__": "positive",
    "__radd__": "add",
    "__rand__": "bitwise_and",
    "__rmul__": "mul",
    "__ror__": "bitwise_or",
    "__rtruediv__": "rdiv",
    "__rxor__": "bitwise_xor",
    "__truediv__": "div",
}
"""What torch's function overrides, and so the recorder, call an operator of Python, where it is not the plain word."""

_PATHS = {
    "Functional": "torch.nn.functional.",
    "Tensor": "torch.Tensor.",
    "Torch": "torch.",
    "Distributed": "torch.distributed.",
    "NPU": "torch_npu.",
    "VF": "torch._VF.",
    "Aten": "torch.ops.aten.",
}
"""Where in Python a function is that msProbe has under a prefix; others keep their prefix."""

_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_gather_into_tensor": "all_gather_single",
    "_all_gather_base": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "all_to_all": "alltoall",
    "isend": "send",
    "irecv": "recv",
}
"""Methods of ProcessGroup (torch 2.13), which are what the recorder sees, by function of torch.distributed, where they
differ.
"""


_ALIASES = frozenset(
    {f"__{name}__" for name in ("abs", "add", "ge", "gt", "le", "lt", "matmul", "mul", "ne", "neg", "sub")}
    | {*_OPERATORS} - {"__ipow__", "__rtruediv__"}
)
"""Operators that torch.overrides resolves to the method of the plain name, and not to themselves."""


@dataclass(frozen=True)
class DumpKey:
    """What a key of dump.json says: ``prefix`` 'Module' or that of a function; ``name`` the FQN of the module or the
    name of the function, ``kind`` the module's class; ``number`` which of its calls.
    """

    prefix: str
    name: str
    kind: str
    way: Literal["forward", "backward", "parameters_grad"]
    number: int

    @property
    def is_module(self) -> bool:
        """True if this is a module's forward or backward pass."""
        return self.prefix == "Module" and self.way != "parameters_grad"

    @property
    def api(self) -> str:
        """The column ``api``: the class of a module (msProbe keeps no more of it), or the path of a function."""
        alias = self.prefix == "Distributed" or self.kind in _ALIASES
        function = self.name if alias else self.kind
        return self.kind if self.prefix == "Module" else _PATHS.get(self.prefix, f"{self.prefix}.") + function

    @property
    def flags(self) -> str:
        """The column ``flags``, as far as the name shows it."""
        is_function = self.prefix not in ("Module", "Distributed")
        return "inplace" if is_function and (self.name.endswith("_") or self.name in _IN_PLACE) else ""


def parse(text: str) -> DumpKey | None:
    """What ``text`` says; None where it is none of the names of a PyTorch dump."""
    match = _MODULE.fullmatch(text)
    if match is not None:
        number = int(match["number"] or 0)
        return DumpKey("Module", _clean(match["path"], match["kind"]), match["kind"], _way(match["way"]), number)
    match = _CALL.fullmatch(text)
    if match is None or match["prefix"] in ("Module", "Cell"):
        return None
    function = match["function"]
    name = _COLLECTIVES.get(function, function) if match["prefix"] == "Distributed" else _plain(function)
    return DumpKey(match["prefix"], name, function, _way(match["way"]), int(match["number"]))


def _way(text: str) -> Literal["forward", "backward", "parameters_grad"]:
    return "forward" if text == "forward" else "backward" if text == "backward" else "parameters_grad"


def _clean(path: str, kind: str) -> str:
    """The FQN without wrappers; of the wrapped model itself its class, as the recorder names it."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS) or kind


def _plain(function: str) -> str:
    """``add`` for ``__add__``, ``mul_`` as it is."""
    name = function.rsplit(".", 1)[-1]
    if name in _OPERATORS:
        return _OPERATORS[name]
    return name.strip("_") + "_" * (name.endswith("_") and not name.endswith("__"))
