"""Which call of a forward pass gave the value that which call took, and what lies in which module.

R rows of the table ``records``, C calls, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trueline.judge.recorded.step_values import is_returned

FORWARD = "fwd"


@dataclass(frozen=True)
class Rows:
    """Columns of the rows of a step: the call of each [R], its slot, and ``root_R``, the row that has its numbers."""

    of_R: np.ndarray
    slots: Sequence[str]
    root_R: np.ndarray

    @cached_property
    def returned_R(self) -> np.ndarray:
        """[R] bool, whether the call returned the value; else it took it."""
        return np.array([is_returned(slot) for slot in self.slots], dtype=bool)


@dataclass(frozen=True)
class Operands:
    """Edges from the call that gave a value to each that took it, and the row that has the numbers of that value; int64
    [E] each.
    """

    source_E: np.ndarray
    target_E: np.ndarray
    root_E: np.ndarray


def operands_of(rows: Rows, kept_C: np.ndarray) -> Operands:
    """The edges between the calls that are ``kept_C`` (bool [C]). A call took a value from the one that
    returned it last before: a view has the numbers of what it is a view of. Source -1: nothing recorded gave it.
    """
    last: dict[int, int] = {}
    edges: dict[tuple[int, int, int], None] = {}
    # Rows are in the order of execution, so the last that returned a value is the one that a later call takes it from.
    for row in np.flatnonzero(kept_C[rows.of_R]).tolist():
        call, root = int(rows.of_R[row]), int(rows.root_R[row])
        source = last.get(root, -1)
        if rows.returned_R[row]:
            last[root] = call
            if source in (-1, call):
                continue  # it is new; else a module returns what a call in it did
        edges[source, call, root] = None
    source_E, target_E, root_E = np.array(list(edges), dtype=np.int64).reshape(-1, 3).T
    return Operands(source_E, target_E, root_E)


class Tree:
    """The modules of a step by name: which lies in which, as far as they were recorded."""

    def __init__(self, names: Sequence[str], kinds: Sequence[str], modules: Sequence[str]) -> None:
        self._outer = {
            name: module or ""
            for name, kind, module in zip(names, kinds, modules, strict=True)
            if kind == "module" and name
        }
        self._child_by_key: dict[tuple[str, str], str | None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._outer

    def outer(self, name: str) -> str:
        """The module that a module lies in, "" for the outermost; of one that was not recorded, by its name."""
        if name in self._outer:
            return self._outer[name]
        head = name.rpartition(".")[0]
        while head and head not in self._outer:
            head = head.rpartition(".")[0]
        return head

    def child(self, outer_module: str, name: str) -> str | None:
        """The module directly in ``outer_module`` that module ``name`` lies in, maybe itself, or None."""
        key = outer_module, name
        if key not in self._child_by_key:
            visited, module = set[str](), name
            while module and module not in visited and self.outer(module) != outer_module:
                visited.add(module)
                module = self.outer(module)
            self._child_by_key[key] = module if module and module not in visited else None
        return self._child_by_key[key]

    def path(self, name: str) -> list[str]:
        """``name`` and the modules that it lies in, outermost first."""
        path: list[str] = []
        while name and name not in path:
            path.append(name)
            name = self.outer(name)
        return path[::-1]
