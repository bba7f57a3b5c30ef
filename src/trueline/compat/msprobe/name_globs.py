"""msProbe's names of modules and calls as globs over Trueline's. Pure.

A module is ``Module.<FQN>.<class>.forward.<call>`` there and ``<FQN>`` here, and a call ``<kind>.<function>.<call>.
forward`` there and ``<FQN of its module>.<function>`` here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from trueline.compat.msprobe.config import Settings
from trueline.schema.errors import InputError
from trueline.schema.plan import Phase

KINDS = ("Tensor", "Torch", "Functional", "NPU", "VF", "Aten", "Distributed", "MindSpeed", "Triton", "Custom", "Jit")
_MODULE = re.compile(r"Module\.(?P<path>.+)\.(?P<way>forward|backward)\.(?P<call>\d+)")
_CALL = re.compile(rf"({'|'.join(KINDS)})\.(?P<function>.+)\.\d+\.(forward|backward)")
_KIND = re.compile(rf"^({'|'.join(KINDS)})\.")


def plan_of(settings: Settings, modules: Mapping[str, str]) -> dict[str, Any]:
    """The keys of the Plan that records what ``settings`` asks for; ``modules`` are class names by FQN.

    Raises ``InputError`` for a name that is not supported or that matches nothing.
    """
    plan: dict[str, Any] = {"preset": settings.preset, "depth": settings.depth, "stacks": settings.stacks}
    phases: tuple[Phase, ...] = settings.phases
    if settings.scope is not None:
        first, last = (_scope_end(name, settings.level, modules) for name in settings.scope)
        plan["between"] = (literal(first), literal(last))
        phases = _only(phases, ways={"forward"})
    if settings.listed:
        globs_and_ways = [_listed(entry, settings.level, modules) for entry in settings.listed]
        plan["names"] = tuple(dict.fromkeys(glob for globs, _ in globs_and_ways for glob in globs))
        phases = _only(phases, ways={way for _, way in globs_and_ways})
    plan["phases"] = phases
    return plan


def literal(text: str) -> str:
    """A glob that matches ``text`` and nothing else."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _only(phases: tuple[Phase, ...], *, ways: set[str]) -> tuple[Phase, ...]:
    """The ``phases`` that remain where all names say forward, or all say backward."""
    if ways == {"forward"}:
        return tuple(phase for phase in phases if phase in ("fwd", "param", "opt", "comm")) or phases
    if ways == {"backward"}:
        return tuple(phase for phase in phases if phase in ("bwd", "grad")) or phases
    return phases


def _listed(entry: str, level: str, modules: Mapping[str, str]) -> tuple[list[str], str]:
    """Globs for an entry of ``list``, and whether it says forward, backward or neither ('')."""
    if _CALL.fullmatch(entry):
        function = _CALL.fullmatch(entry)["function"]  # type: ignore[index]
        raise InputError(
            f"'list' holds '{entry}', one call among several: Trueline chooses by name. Write '{function}' to record "
            "every call of it."
        )
    if entry.startswith("name-regex("):
        raise InputError(
            f"'list' holds '{entry}', which is of MindSpore. Write a part of the name of a module or call."
        )
    if whole := _MODULE.fullmatch(entry):
        fqn = _module(entry, whole, level, modules)
        return _with_inside(fqn, level), whole["way"]
    matching = [fqn for fqn, kind in modules.items() if entry in f"Module.{fqn}.{kind}."] if level != "L1" else []
    globs = [glob for fqn in matching for glob in _with_inside(fqn, level)]
    if level != "L0":
        function = _KIND.sub("", entry)
        function = function.strip("_") if function.startswith("__") else function
        globs.append(f"*{literal(function)}*")
    if not globs:
        near = difflib.get_close_matches(entry, modules, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise InputError(f"'list' holds '{entry}', which is in the name of none of {len(modules)} modules.{hint}")
    return globs, ""


def _with_inside(fqn: str, level: str) -> list[str]:
    """Globs for a module, and at level mix for what runs in it too."""
    return [literal(fqn), f"{literal(fqn)}.*"] if level == "mix" else [literal(fqn)]


def _scope_end(name: str, level: str, modules: Mapping[str, str]) -> str:
    whole = _MODULE.fullmatch(name)
    if whole is None or whole["way"] != "forward":
        raise InputError(
            f"'scope' holds '{name}', which is not supported. Expected two modules' forward passes, like "
            "'Module.layers.0.Linear.forward.0', at level L0 or mix."
        )
    return _module(name, whole, level, modules)


def _module(name: str, whole: re.Match[str], level: str, modules: Mapping[str, str]) -> str:
    """The FQN that a whole name of a module has here."""
    if level == "L1":
        raise InputError(f"'{name}' is a module, and none is recorded at level L1. Set level to L0 or mix.")
    if whole["call"] != "0":
        raise InputError(
            f"'{name}' is one call among several of a module: Trueline records all of them. End the name in "
            f"'.{whole['way']}.0'."
        )
    path, _, kind = whole["path"].rpartition(".")
    for fqn in (path, path.removeprefix("module.")):
        if modules.get(fqn) == kind:
            return fqn
    module_names = [f"Module.{fqn}.{kind}.{whole['way']}.0" for fqn, kind in modules.items()]
    near = difflib.get_close_matches(name, module_names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InputError(f"The model has no module '{name}'.{hint}")
