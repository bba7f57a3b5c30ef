"""A recorded step as `compare` sees it: values in the order of execution, and the calls that took and gave them.

A value is what one row of ``Run.records`` tells, or what the rows of several ranks or micro-batches tell together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trueline.analyze.recorded.tensors import Stored
from trueline.schema.fact import fact
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats

_RETURNED = re.compile(r"out(\d.*|\.\D.*)")
"""Slots of what a call returned, as ``capture.record.arguments.outputs`` names them: ``out0``, ``out0.2``, ``out.x``.
"""

OF_BATCH = ("fwd", "bwd", "save")
"""Phases that every micro-batch has; of the others, the micro-batch that is noted is the last one."""

Loader = Callable[[], Stored]
"""Opens a stored value; float32 for what NumPy has no type for (bfloat16, float8). Raises ``RunError`` where it is gone
or damaged."""


@fact(eq=False)
class Value:
    """One value of a step. ``index`` is its place in ``StepValues.values``, ``root`` that of the first sighting of the
    same tensor (itself where it is the first). ``ranks`` saw it: one, or all that were merged. ``stats`` None: it was
    not measured; ``note`` says why. ``load`` None: it was not stored. ``scale`` is what the numbers were multiplied
    by to be comparable (1.0 but for gradients of averaged losses).
    """

    index: int
    root: int
    ranks: tuple[int, ...]
    site: Site
    kind: str
    api: str
    module: str
    flags: frozenset[str]
    dtype: str
    shape: tuple[int, ...]
    args: str | None = None
    stack: int | None = None
    stats: TensorStats | None = None
    load: Loader | None = None
    note: str = ""
    scale: float = 1.0

    @property
    def returned(self) -> bool:
        """Whether the call of this value returned it (else it took it). Of a gradient: of the forward call."""
        return is_returned(self.site.slot)


@functools.cache
def is_returned(slot: str) -> bool:
    """Whether a slot is of what a call returned."""
    return _RETURNED.fullmatch(slot) is not None


CallKey = tuple[int, str, str, int]
"""(micro, phase, name, call) of a Site."""


def key_of(value: Value) -> CallKey:
    """The call that a value belongs to."""
    site = value.site
    return site.micro, site.phase, site.name, site.call


@fact(eq=False)
class Call:
    """The values of one call in one phase, in order; a parameter or gradient is a call of its own, kind ``param``."""

    micro: int
    phase: str
    name: str
    number: int
    values: list[Value] = field(default_factory=list[Value])

    @property
    def first(self) -> Value:
        """The value that was seen first, which carries the arguments."""
        return self.values[0]

    @property
    def module(self) -> str:
        """FQN of the module that the call ran in; of a module's own call, its own."""
        return self.name if self.first.kind == "module" else self.first.module

    @property
    def op(self) -> str:
        """What was called, without where: ``linear``, ``add``; the class's name for a module."""
        return self.first.api.rsplit(".", 1)[-1] if self.first.api else self.name.rsplit(".", 1)[-1]


@dataclass(frozen=True, eq=False)
class StepValues:
    """All values of one step of one run, on one rank or merged over several. ``label`` is the user's path of it,
    ``compiled`` names modules of which only what goes in and comes out was seen, if that.
    """

    label: str
    step: int
    ranks: tuple[int, ...]
    values: Sequence[Value]
    compiled: frozenset[str] = frozenset()

    def calls(self) -> list[Call]:
        """The calls in the order of their first values."""
        calls: dict[CallKey, Call] = {}
        last, values = None, list[Value]()
        for value in self.values:
            key = key_of(value)
            if key != last:  # most values of a call follow each other
                call = calls.get(key)
                if call is None:
                    call = calls[key] = Call(*key)
                last, values = key, call.values
            values.append(value)
        return list(calls.values())
