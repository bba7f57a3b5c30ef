"""Which call of which name, in which phase, each entry of an msProbe dump is, as the recorder counts and names calls.

msProbe numbers the calls of a function over the whole model (``Functional.linear.3``), the recorder those of a name,
which begins with that of the module that runs (``layers.0.fc.linear``, call 0). The module is in construct.json.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from trueline.store.importers.msprobe.names import DumpKey, parse
from trueline.store.importers.step_rows import ValueOwner

_UPDATE = "optimizer"
_CLIPPING = "clip_grad"
"""What construct.json has as the parent of calls in the optimizer and while gradients are clipped."""

_IN_MODULE = re.compile(r"File \S*/torch/nn/modules/module\.py, line \d+, in (_call_impl|_wrapped_call_impl|inner)\b")
_IN_UPDATE = re.compile(r"File \S*/torch/optim/\w+\.py, line \d+, in step\b")


class Calls:
    """The calls of one step on one rank.

    ``entries`` are the names in dump.json in order, ``construct`` is construct.json, ``stacks`` has the number of the
    call stack by name and ``frames`` that stack as msProbe wrote it. ``model`` and ``optimizer`` are the names of
    classes, which no dump holds: calls that the model itself makes, outside of all its modules, stand below the first.
    """

    def __init__(
        self,
        entries: Iterable[str],
        construct: Mapping[str, Any],
        *,
        stacks: Mapping[str, int],
        frames: Mapping[int, Collection[str]],
        model: str,
        optimizer: str,
    ) -> None:
        self._construct = construct
        self._stacks = stacks
        in_module = (number for number, lines in frames.items() if _matches_any(_IN_MODULE, lines))
        self._roots = dict.fromkeys(in_module, model) if model else {}
        self._updates = {number for number, lines in frames.items() if _matches_any(_IN_UPDATE, lines)}
        self._optimizer = optimizer
        self.model_ran: set[int] = set()
        """Micro-batches in which the model itself, which is in no dump, called something."""
        self._counts: dict[tuple[int, str, str], int] = {}
        self._owners: dict[str, ValueOwner] = {}
        names = dict.fromkeys([*construct, *entries])
        keys = {name: key for name in names if (key := parse(name)) is not None}
        self._count([(name, key) for name, key in keys.items() if key.way == "forward"])
        alone = [(name, key) for name, key in keys.items() if key.way == "backward" and not self._has_forward(name)]
        self._count(sorted(alone, key=lambda pair: pair[1].number))

    def owner(self, name: str) -> ValueOwner | None:
        """The call that the values of an entry belong to; None for an entry that is no call. Of a backward pass it
        is the forward call, in phase bwd: gradients belong to the values that they are with respect to.
        """
        owner = self._owners.get(name)
        twin = self._owners.get(_forward_of(name))
        key = parse(name)
        if key is None or key.way == "parameters_grad" or (owner is None and twin is None):
            return None
        if key.way == "forward" or twin is None:
            return owner
        return ValueOwner(
            phase="bwd", name=twin.name, call=twin.call, kind=twin.kind, api=twin.api, module=twin.module,
            micro=twin.micro, stack=twin.stack, flags=twin.flags,
        )  # fmt: skip

    def parents(self, name: str) -> list[str]:
        """The names of the modules around a forward call, the outermost first."""
        chain: list[str] = []
        parent = self._parent(name)
        while parent is not None and parent not in chain:
            chain.append(parent)
            parent = self._parent(parent)
        return [module for module in reversed(chain) if (key := parse(module)) is not None and key.is_module]

    def _count(self, calls: Iterable[tuple[str, DumpKey]]) -> None:
        for name, key in calls:
            phase, module = self._scope(name, key)
            micro = self._micro(name)
            if key.is_module:
                call_name, number, kind = key.name, key.number, "module"
            else:
                call_name = f"{module}.{key.name}" if module and phase != "comm" else key.name
                number = self._counts.get((micro, phase, call_name), 0)
                self._counts[micro, phase, call_name] = number + 1
                kind = "collective" if phase == "comm" else "op"
            self._owners[name] = ValueOwner(
                phase=phase, name=call_name, call=number, kind=kind, api=key.api, module=module, micro=micro,
                stack=self._stacks.get(name), flags=key.flags,
            )  # fmt: skip

    def _scope(self, name: str, key: DumpKey) -> tuple[str, str]:
        """The phase of a call and the module that it ran in."""
        parent, stack = self._parent(name), self._stacks.get(name)
        if key.way == "backward":
            phase = "bwd"
        elif key.prefix == "Distributed":
            phase = "comm"
        elif parent == _UPDATE or (parent is None and stack in self._updates):
            return "opt", self._optimizer
        elif parent == _CLIPPING:
            return "grad", ""
        else:
            phase = "fwd"
        parent_key = parse(parent) if parent is not None else None
        if parent_key is not None and parent_key.is_module:
            return phase, parent_key.name
        if stack not in self._roots or (key.is_module and key.name == key.kind):  # the latter is the model inside DDP
            return phase, ""
        self.model_ran.add(self._micro(name))
        return phase, self._roots[stack]

    def _parent(self, name: str) -> str | None:
        parent = self._construct.get(name)
        return parent[0] if isinstance(parent, list) and parent else parent if isinstance(parent, str) else None

    def _micro(self, name: str) -> int:
        """The micro-batch, which is in the dumps of Megatron only: there an entry is [parent, micro-batch]."""
        entry = self._construct.get(name)
        has_micro = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int)
        return max(entry[1], 0) if has_micro else 0

    def _has_forward(self, name: str) -> bool:
        return _forward_of(name) in self._owners


def _forward_of(name: str) -> str:
    """The name of the forward pass of a backward one."""
    return re.sub(r"\.backward(\.\d+)?$", r".forward\1", name)


def _matches_any(pattern: re.Pattern[str], lines: Collection[str]) -> bool:
    return any(pattern.search(line) for line in lines)
