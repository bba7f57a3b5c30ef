"""The sinks that are installed, and what a user writes to ask for one: ``NAME:TARGET``, as in ``tensorboard:runs/tb``.

Ours and those of other packages enter by one door, the group ``trueline.sinks``. A sink is a module with
``open_sink(target, run)``, which returns a ``LiveSink`` and imports its library only then, and ``LIBRARY``, the name of
the package that it needs ('' for none), with ``INSTALL`` where pip calls that otherwise. Asked before a job is started,
``require_target(target)`` raises ``InputError`` for a target that cannot be, and ``require_ready()`` where it surely
cannot be opened, as where nobody is logged in; it may have both.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Sequence
from functools import partial

from trueline import sinks
from trueline.schema.errors import InputError
from trueline.schema.live import LiveSink
from trueline.schema.plugins import entry_points
from trueline.schema.text.reading import shortened, why

GROUP = "trueline.sinks"

TO_PATHS: tuple[str, ...] = ("jsonl", "tensorboard")
"""Those of ours whose target is a path: relative to where the user stands."""


def require_sinks(sink_texts: Sequence[str]) -> None:
    """Raise ``InputError`` for a sink that is not installed, lacks its package, or has no target."""
    for text in sink_texts:
        opener(text)


def require_ready(sink_texts: Sequence[str]) -> None:
    """Raise ``InputError`` for a sink that could not be opened once the job runs."""
    for name in dict.fromkeys(text.partition(":")[0] for text in sink_texts):
        check = getattr(importlib.import_module(installed_sinks()[name]), "require_ready", None)
        if check is not None:
            check()


def opener(text: str) -> Callable[[str], LiveSink]:
    """What opens the sink that ``text`` asks for, given the Run's path. Raises ``InputError``."""
    name, colon, target = text.partition(":")
    modules = installed_sinks()
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(
            f"Sink '{shortened(name)}' is not installed: {hint}A sink is NAME:TARGET, and the names are "
            f"{', '.join(sorted(modules))}."
        )
    if colon and not target:
        raise InputError(f"Sink '{name}:' has no target. Write {name}:TARGET, for example {name}:{_example(name)}.")
    try:
        module = importlib.import_module(modules[name])
    except ImportError as error:
        raise InputError(
            f"Sink '{name}' cannot be loaded from '{modules[name]}': {why(error)}. Reinstall or remove the package "
            "that registers it."
        ) from error
    if not hasattr(module, "open_sink"):
        raise InputError(f"Sink '{name}' in {modules[name]} lacks open_sink. A sink is a module with open_sink.")
    library = getattr(module, "LIBRARY", "")
    if library and not _installed(library):
        package = getattr(module, "INSTALL", library.replace("_", "-"))
        raise InputError(f"Sink '{name}' needs the package {package}, which is not installed: pip install {package}.")
    if not colon and not getattr(module, "DEFAULT", ""):
        raise InputError(f"Sink '{name}' has no target. Write {name}:TARGET, for example {name}:{_example(name)}.")
    if hasattr(module, "require_target"):
        module.require_target(target or module.DEFAULT)
    return partial(module.open_sink, target or module.DEFAULT)


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # a package that it would be in is missing
        return False


def at_home(text: str) -> str:
    """``text`` with the path in it made absolute: training may go on elsewhere, and the process of sinks does."""
    name, _, target = text.partition(":")
    return f"{name}:{os.path.abspath(target)}" if name in TO_PATHS and target else text


def installed_sinks() -> dict[str, str]:
    """The module of every sink, by name; where Trueline is run from its sources without being installed, ours."""
    installed = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    names = [module.name for module in pkgutil.iter_modules(sinks.__path__)]
    own_sinks = {name: f"{sinks.__name__}.{name}" for name in names if name in OWN_SINKS}
    return own_sinks | installed


OWN_SINKS: tuple[str, ...] = ("jsonl", "tensorboard", "webhook", "prometheus", "wandb", "mlflow", "otlp", "trackio")


def _example(name: str) -> str:
    return {
        "webhook": "https://hooks.example/T0",
        "prometheus": "9400",
        "mlflow": "http://localhost:5000",
        "otlp": "http://localhost:4318",
    }.get(name, f"runs/{name}")
