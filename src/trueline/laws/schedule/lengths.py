"""How many of its own steps a schedule declares that it is made for, as its settings or its function name them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

NAMES = (
    "T_max",
    "total_steps",
    "total_iters",
    "num_training_steps",
    "training_steps",
    "train_steps",
    "num_train_steps",
    "max_train_steps",
    "total_training_steps",
    "max_steps",
    "max_iters",
    "max_updates",
    "total_updates",
    "num_updates",
    "total_num_update",
    "num_iterations",
    "total_iterations",
    "max_iterations",
    "max_epochs",
    "total_epochs",
    "num_epochs",
    "t_total",
    "t_initial",
    "lr_decay_steps",
    "lr_decay_iters",
    "total",
)
"""What the length of a schedule is called: settings of torch's classes, of the functions of transformers, and what
scripts call it."""
_LENGTHS = {name.lower(): name for name in NAMES}

_PARTS = ("num_warmup_steps", "num_stable_steps", "num_decay_steps")
"""Of transformers' warm-up, stable and decay: their sum is the length."""

MAX_FUNCTIONS = 8
"""Functions of a scheduler, one a parameter group, that are looked at."""

ENDLESS = ("ReduceLROnPlateau", "CosineAnnealingWarmRestarts", "CyclicLR", "ConstantLR")
"""Classes that go on by design, or whose length is that of a warm-up."""


def description(scheduler: Any) -> dict[str, Any]:
    """The class of a scheduler; and where it declares one, its ``length`` in its own steps and how that is called."""
    facts: dict[str, Any] = {"class": type(scheduler).__name__}
    try:
        length = _length(scheduler)
    except Exception:  # an object of the user's may do anything where it is looked at
        length = None
    return facts if length is None else {**facts, "name": length[0], "length": length[1]}


def _length(scheduler: Any) -> tuple[str, int] | None:
    ancestors = {ancestor.__name__ for ancestor in type(scheduler).__mro__}
    if not ancestors.isdisjoint(ENDLESS):
        return None
    settings = cast("dict[str, Any]", scheduler.__dict__)
    # a warm-up has an end that is passed on purpose
    if "LinearLR" in ancestors and not settings.get("end_factor", 1.0) < settings.get("start_factor", 1.0):
        return None
    if (length := _named(settings)) is not None:
        return length
    functions = cast("list[Any]", settings.get("lr_lambdas") or [])
    lengths = {_of_function(function) for function in functions[:MAX_FUNCTIONS]}
    return lengths.pop() if len(lengths) == 1 else None  # groups with ends of their own have no one end


def _of_function(function: Any) -> tuple[str, int] | None:
    """The length that a function of the schedule's step has bound, closes over, holds, or reads as a global."""
    return next((length for names in _bound(function) if (length := _named(names)) is not None), None)


def _bound(function: Any) -> Iterator[Mapping[str, Any]]:
    """Names and values that a function knows beside its argument, the nearest first."""
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        parameters = list(inspect.signature(partial.func).parameters)
        yield {**dict(zip(parameters, partial.args, strict=False)), **partial.keywords}
        yield from _bound(partial.func)
    elif inspect.ismethod(function):
        yield getattr(function.__self__, "__dict__", {})
    elif inspect.isfunction(function):
        closed = inspect.getclosurevars(function)
        yield closed.nonlocals
        defaults = inspect.signature(function).parameters.items()
        yield {name: parameter.default for name, parameter in defaults if parameter.default is not parameter.empty}
        yield closed.globals
    else:
        yield getattr(function, "__dict__", {})


def _named(values: Mapping[str, Any]) -> tuple[str, int] | None:
    parts = [values.get(name) for name in _PARTS]
    if all(_is_length(part) or part == 0 for part in parts):
        return "num_warmup, stable and decay_steps", int(sum(cast("list[int]", parts)))
    found = {_LENGTHS[name.lower()]: name for name in values if name.lower() in _LENGTHS and _is_length(values[name])}
    # a function may know a number of updates and of epochs: the order of NAMES decides, not that of the code
    name = next((found[length] for length in NAMES if length in found), None)
    return None if name is None else (name, int(values[name]))


def _is_length(value: Any) -> bool:
    """True for a number of steps: some scripts compute it as a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 1
