"""msProbe's names and arguments against what torch itself does with them."""

import ast
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from trueline.capture.record.functions import Function
from trueline.store.importers.msprobe.names import parse
from trueline.store.importers.msprobe.signatures import SIGNATURES


@pytest.mark.parametrize(
    ("text", "name", "api", "way", "number"),
    [
        ("Module.layers.0.fc.Linear.forward.3", "layers.0.fc", "Linear", "forward", 3),
        ("Module.layers.0.fc.Linear.parameters_grad.0", "layers.0.fc", "Linear", "parameters_grad", 0),
        ("Module.layers.0.fc.Linear.parameters_grad", "layers.0.fc", "Linear", "parameters_grad", 0),
        ("Module.module.layers._orig_mod.0.Block.backward.1", "layers.0", "Block", "backward", 1),
        ("Module.module.Net.forward.0", "Net", "Net", "forward", 0),
        ("Functional.linear.12.forward", "linear", "torch.nn.functional.linear", "forward", 12),
        ("Torch.matmul.0.backward", "matmul", "torch.matmul", "backward", 0),
        ("NPU.npu_rms_norm.0.forward", "npu_rms_norm", "torch_npu.npu_rms_norm", "forward", 0),
        ("Distributed.all_reduce.1.forward", "allreduce", "torch.distributed.allreduce", "forward", 1),
    ],
)
def test_a_name_says_what_was_called_and_which_time(text, name, api, way, number):
    key = parse(text)
    assert (key.name, key.api, key.way, key.number) == (name, api, way, number)


@pytest.mark.parametrize("text", ["optimizer", "Cell.fc.Dense.forward.0", "Module.fc", "", "Functional.linear.forward"])
def test_other_texts_are_no_names(text):
    assert parse(text) is None


OPERANDS = {"neg": (), "pos": (), "invert": (), "abs": (), "matmul": (torch.ones(2, 2),)}
BITS = ("invert", "and", "or", "xor", "iand", "ior", "ixor", "rand", "ror", "rxor")
OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "iadd", "isub", "imul", "itruediv", "ipow", "imod"),
    *("radd", "rsub", "rmul", "rtruediv", "eq", "lt", "ge", "neg", "pos", "abs", "matmul", *BITS),
)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_has_the_name_under_which_the_recorder_sees_it(operator):
    seen = []

    class Listener(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            function = Function(func)
            seen.append((function.name, function.api, function.flags))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 2, dtype=torch.int64 if operator in BITS else torch.float32)
    with Listener():
        getattr(x, f"__{operator}__")(*OPERANDS.get(operator, (2,)))
    key = parse(f"Tensor.__{operator}__.0.forward")
    assert (key.name, key.api, key.flags) == seen[0]


def test_signatures_are_those_in_torchs_source():
    checked = 0
    for node in ast.walk(ast.parse(inspect.getsource(F))):
        if isinstance(node, ast.FunctionDef) and (handed := _handed_on(node)) and handed[0] in SIGNATURES:
            name, by_position, by_name = handed
            names, num_positional = SIGNATURES[name]
            assert names[:num_positional] == by_position, name
            assert set(by_name) <= set(names[num_positional:]), name
            checked += 1
    assert checked == len(SIGNATURES)


def _handed_on(function):
    """Name, arguments by position and by name of the call of handle_torch_function, which names what is overridden."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "handle_torch_function":
            name = node.args[0].id if isinstance(node.args[0], ast.Name) else node.args[0].attr
            by_position = tuple(getattr(arg, "id", "*") for arg in node.args[2:])
            return name, by_position, tuple(keyword.arg for keyword in node.keywords)
    return None
