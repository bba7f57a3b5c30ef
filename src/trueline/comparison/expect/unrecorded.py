"""Effect of unrecorded code on values: all code between calls of modules, where only these were recorded.

A value that a module takes, and that no recorded call made, was computed by the code of the module around it, from any
of what that had by then. A gradient adds up what came back through calls of modules and through such code. How code
passes differences on cannot be known; what is expected is a multiple of the largest difference of what it had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import is_masked
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.judge.recorded.step_values import StepValues, Value

AMPLIFIED = 1.0
"""Times as large as the largest difference of what it had that a few lines of code make a difference; of healthy pairs
of ``benchmarks.compare.corpus`` (dev half, preset ``modules``).
"""


@dataclass(slots=True)
class _Inside:
    """Largest relative difference that rounding explains of the values that the code of a module had, by pass."""

    forward: float = 0.0
    backward: float = 0.0
    any_backward: bool = False


class Unrecorded:
    """Unrecorded code of ``side``, by the name of its module, '' outside of the model."""

    def __init__(self, side: StepValues) -> None:
        forward = [value for value in side.values if value.site.phase == "fwd"]
        kinds = {value.kind for value in forward}
        self.applies = "module" in kinds and "op" not in kinds
        """True where calls of modules were recorded, and no others."""
        self._inside: defaultdict[tuple[int, str], _Inside] = defaultdict(_Inside)
        self._users: defaultdict[int, set[str]] = defaultdict(set)
        self._last_made: dict[tuple[int, str], int] = {}
        self._compiled = side.compiled
        self._worst = 0.0
        self._models = {value.site.name for value in forward if value.kind == "module" and not value.module}
        if not self.applies:
            return
        # A class of torch.nn that calls no module is a function, and hides no code.
        parents = {value.module for value in forward}
        self._no_code = {value.site.name for value in forward if is_of_torch(value) and value.site.name not in parents}
        self._called_names = {value.site.name for value in forward}
        params = {value.root: value.site.name for value in side.values if value.site.phase == "param"}
        self._params = [(name.rpartition(".")[0], root) for root, name in params.items()]
        for value in forward:
            self._users[value.root].add(value.module)
            if not value.returned:
                self._users[value.root].add(value.site.name)
            if value.index == value.root and value.root not in params:
                self._last_made[value.site.micro, self._maker(value)] = value.index

    def _maker(self, value: Value) -> str:
        return value.site.name if value.returned else value.module

    def is_code(self, module: str) -> bool:
        """Tell whether a module runs code of its own, and is no single function of torch."""
        return module not in self._no_code

    def note(self, value: Value, rel: float) -> None:
        """Note that rounding explains a difference ``rel`` of a value. Masked values have no size and are left out."""
        phase, micro = value.site.phase, value.site.micro
        if phase not in ("fwd", "bwd") or value.kind != "module" or is_masked(value):
            return
        names = (value.module,) if value.returned and phase == "fwd" else (value.module, value.site.name)
        for name in names:
            inside = self._inside[micro, name]
            if phase == "fwd":
                inside.forward = max(inside.forward, rel)
            else:
                inside.backward, inside.any_backward = max(inside.backward, rel), True
        self._worst = max(self._worst, rel)

    def params_of(self, module: str) -> list[int]:
        """Roots of parameters that the code of a module uses: its own, and those of uncalled modules in it."""
        prefix = "" if module in self._models else f"{module}."
        return [
            root
            for name, root in self._params
            if name == module or (name not in self._called_names and f"{name}.".startswith(prefix))
        ]

    @property
    def tied(self) -> list[int]:
        """Roots of parameters of modules that are never called, such as one that lends its weight to another."""
        return [root for name, root in self._params if name not in self._called_names]

    def forward_rel(self, value: Value, module: str, params: Iterable[float], dtype: str) -> float:
        """Relative difference to expect of a ``value`` that the code of ``module`` made."""
        inside = self._inside[value.site.micro, module]
        largest_rel = max(inside.forward, *params, 0.0)
        if dtype not in UNIT_ROUNDOFF:
            return math.sqrt(2) if largest_rel > 0 else 0.0  # a decision
        return AMPLIFIED * math.hypot(largest_rel, _rounding(dtype))

    def backward_rel(self, value: Value, root: int | None, dtype: str) -> float:
        """Relative difference to expect of the gradient of forward value ``root``, or of a parameter (None)."""
        names = self._around_param(value) if root is None else [*self._users[root], value.module]
        insides = [self._inside[value.site.micro, name] for name in names]
        seen_backward = [inside.backward for inside in insides if inside.any_backward] or [self._worst]
        largest_rel = math.hypot(max(seen_backward), max((inside.forward for inside in insides), default=0.0))
        cancelled = _CANCELLED if value.numel == 1 else 1.0
        return math.hypot(AMPLIFIED * largest_rel * cancelled, rounding_of_code(value, dtype))

    def _around_param(self, value: Value) -> list[str]:
        """Innermost called module around a parameter, in a list that is empty without one."""
        parts = value.site.name.split(".")[:-1]
        parents = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return [name for name in parents if name in self._called_names][:1]

    def compiled_around(self, param: str) -> str | None:
        """Compiled module that a parameter is in, whose inputs and outputs alone were recorded; None outside of any."""
        models = self._models & self._compiled
        compiled = [name for name in self._compiled if param.startswith(f"{name}.")]
        return max(compiled, key=len, default=None) or next(iter(models), None)

    def innermost_user(self, micro: int, root: int) -> str | None:
        """Innermost module whose code may have used the value ``root``; None where recorded calls alone did."""
        users = [
            name
            for name in self._users[root]
            if self.is_code(name) and (not name or self._last_made.get((micro, name), -1) > root)
        ]
        return max(users, key=self._depth, default=None)

    def _depth(self, module: str) -> int:
        return 0 if not module else 1 if module in self._models else 2 + module.count(".")


_CANCELLED = 16.0
"""Times as large as that of a tensor that the difference of a single number may be, which may be what is left of a sum.
"""


def is_of_torch(value: Value) -> bool:
    """Tell whether a module is of a class of torch.nn."""
    return value.api.startswith("torch.nn.modules.")


def rounding_of_code(value: Value, dtype: str) -> float:
    """Relative difference to expect of a gradient from the rounding of the code that it came through."""
    return AMPLIFIED * _rounding(dtype) * (_CANCELLED if value.numel == 1 else 1.0)


def _rounding(dtype: str) -> float:
    return math.sqrt(2) * op_rounding_rel("unknown", dtype, dtype) if dtype in UNIT_ROUNDOFF else 0.0
