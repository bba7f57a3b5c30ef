"""Settings of torch that are held at another value in a job that knows nothing of it, while it is watched.

``trueline trial`` hands ``Changes`` down in the environment, and ``attach/sitecustomize.py`` puts them in place once
torch is imported. A switch says where a setting is (``how``, ``where``) and the value that counts as ``off``:

==============  ==========================================================  ==========================================
how             where                                                       off
==============  ==========================================================  ==========================================
``setting``     dotted path of an attribute                                 its value
``function``    dotted path of a setter, and of its getter as ``reads``     the argument
``optimizer``   key of the groups of every optimizer of torch               its value
``keyword``     dotted path of a function or class, and ``keyword``         the argument
``bypass``      dotted path of a function whose first argument is called    –
==============  ==========================================================  ==========================================

A switch is *met* where the job has it at another value, or, with ``seen``, calls that function; this is written down
for switches that are off and for those that are not. What a script sets itself is set back before the next call of a
module.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueline.capture.child_env import CHANGES
from trueline.capture.model import patches
from trueline.capture.model.framework_update import after_update
from trueline.capture.model.untraced import Hook
from trueline.capture.seeding import seed_all
from trueline.capture.trial.checkpoints import KeptCheckpoints
from trueline.capture.trial.faults.kinds import fault_of
from trueline.capture.trial.fed_modules import FedModules
from trueline.capture.trial.phases import Phase
from trueline.capture.trial.remedies import Remedy
from trueline.capture.trial.repeated_calls import RepeatedCalls
from trueline.capture.trial.rounded_weights import RoundedWeights
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

_UNKNOWN = object()

LONGEST_WAIT_S = 0.5
"""Between two calls of modules that a sleep follows: what takes longer is no operation, but a start or a dataset."""


def install() -> None:
    """Put in place what the environment asks for; called once torch is imported."""
    Changes(**json.loads(os.environ[CHANGES])).install()


class Changes:
    """Holds those of ``switches`` that are named in ``off`` at their off value, writes the names of those that are met
    to a file in ``met``, and ends the process after the update with which an optimizer has made ``updates`` of them.
    ``slow`` is how many times as long everything takes: a sleep after each call of a module, backward pass and update,
    which waits for no device and no thread. ``seed`` is that of all streams, until the script sets its own; with
    ``deterministic`` torch takes forms of operations that repeat themselves, where it has any. ``shift`` is added to
    each seed that the script sets; ``remedy`` has the arguments of ``capture.trial.remedies.Remedy``, ``repeat``
    those of ``capture.trial.repeated_calls.RepeatedCalls``, ``feed`` those of ``capture.trial.fed_modules.FedModules``,
    ``phase`` those of ``capture.trial.phases.Phase``, ``fault`` those of ``capture.trial.faults.kinds.fault_of``; with
    ``saves_in`` checkpoints are written to this folder only (``capture.trial.checkpoints``). With
    ``dropout`` False nothing is dropped; ``rounded`` is the seed of ``capture.trial.rounded_weights.RoundedWeights``.
    """

    def __init__(
        self,
        *,
        switches: Sequence[Mapping[str, Any]] = (),
        off: Sequence[str] = (),
        met: str = "",
        updates: int | None = None,
        slow: float = 1.0,
        seed: int | None = None,
        deterministic: bool = False,
        shift: int = 0,
        remedy: Mapping[str, Any] | None = None,
        repeat: Mapping[str, Any] | None = None,
        feed: Mapping[str, Any] | None = None,
        phase: Mapping[str, Any] | None = None,
        dropout: bool | None = None,
        rounded: int | None = None,
        fault: Mapping[str, Any] | None = None,
        saves_in: str | None = None,
    ) -> None:
        self._switches, self._names_off, self._met_folder, self._updates = list(switches), {*off}, met, updates
        self._slow, self._last_call_at, self._seed, self._deterministic = slow, time.monotonic(), seed, deterministic
        self._shift, self._dropout = shift, dropout
        self._repeated = None if repeat is None else RepeatedCalls(**repeat)
        self._met: set[str] = set()
        self._fed_modules = None if feed is None else FedModules(**feed, tell=self._meet)
        parts = (
            None if remedy is None else Remedy(**remedy, tell=self._meet),
            None if phase is None else Phase(**phase, tell=self._meet),
            None if fault is None else fault_of(**fault),
            None if saves_in is None else KeptCheckpoints(saves_in),
            self._repeated,
            self._fed_modules,
            None if rounded is None else RoundedWeights(rounded),
        )
        self._parts = [part for part in parts if part is not None]
        self._trains = False
        self._num_updates: dict[int, int] = {}

    def install(self) -> None:
        """Listen, and hold what can be held from the start."""
        self._put_seeds()
        for part in self._parts:
            part.install()
        if self._repeated is not None:
            atexit.register(self._repeated.end)
        for switch in self._switches_of("keyword"):
            self._patched(switch, self._with_keyword(switch))
        for switch in self._switches_of("bypass"):
            self._patched(switch, self._bypassed(switch))
        for switch in self._switches:
            if switch.get("seen"):
                self._patched({**switch, "where": switch["seen"]}, self._seeing(switch["name"]))
        if self._switches_of("setting", "function"):
            self._hold()
            patches.module_call.add(self._at_call, keep=True)
        register_optimizer_step_pre_hook(Hook(self._at_update))
        if self._updates is not None:
            register_optimizer_step_post_hook(Hook(self._after_update))
        if self._slow > 1:
            patches.module_call.add(self._wait, after=True, keep=True)
            patches.backward.add(self._wait, after=True, keep=True)
            register_optimizer_step_post_hook(Hook(self._wait))
        if self._met_folder:
            atexit.register(self._write)

    def _switches_of(self, *hows: str) -> list[Mapping[str, Any]]:
        """Switches of these kinds, where torch has a device that they are about."""
        return [switch for switch in self._switches if switch["how"] in hows and _has_device(switch.get("device", ""))]

    def _wait(self, *args: Any, **kwargs: Any) -> None:
        time.sleep((self._slow - 1) * min(time.monotonic() - self._last_call_at, LONGEST_WAIT_S))
        self._last_call_at = time.monotonic()

    # -- seeds ------------------------------------------------------------------------------------------------------

    def _put_seeds(self) -> None:
        if self._seed is not None:
            seed_all(self._seed, deterministic="warn" if self._deterministic else False, dropout=self._dropout)
        if self._shift:
            for owner, name in _seeders():
                patches.Patch(owner, name, patches.calling(self._shifted)).install()

    def _shifted(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Seed with another number; what is no number is left as it is."""
        if not args and "seed" not in kwargs:
            return original(**kwargs)
        first, *rest = args or (kwargs.pop("seed"),)
        is_number = isinstance(first, int) and not isinstance(first, bool)
        return original(*((first + self._shift) % 2**32 if is_number else first, *rest), **kwargs)

    # -- settings ---------------------------------------------------------------------------------------------------

    def _at_call(self, *args: Any, **kwargs: Any) -> None:
        self._hold()

    def _hold(self) -> None:
        for switch in self._switches_of("setting", "function"):
            now = _value_of(switch)
            if now is _UNKNOWN or now == switch["off"]:
                continue
            if not switch.get("seen"):
                self._meet(switch["name"])
            if switch["name"] in self._names_off:
                _write(switch)

    # -- optimizers -------------------------------------------------------------------------------------------------

    def _at_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._trains = True
        for switch in self._switches_of("optimizer"):
            for group in optimizer.param_groups:
                now = group.get(switch["where"], switch["off"])
                if now == switch["off"] or (now is None and not _is_default_on(switch["where"], group)):
                    continue
                self._meet(switch["name"])
                if switch["name"] in self._names_off:
                    group[switch["where"]] = switch["off"]

    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        assert self._updates is not None
        self._num_updates[id(optimizer)] = self._num_updates.get(id(optimizer), 0) + 1
        for part in (self._repeated, self._fed_modules):
            if part is not None:
                part.next_step()
        if self._num_updates[id(optimizer)] >= self._updates:
            after_update(self._end)

    def _end(self) -> NoReturn:
        if self._repeated is not None:
            self._repeated.end()
        raise SystemExit(0)

    # -- calls ------------------------------------------------------------------------------------------------------

    def _patched(self, switch: Mapping[str, Any], make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what ``make`` makes of a function in its place, where this torch has it and the device is there."""
        if not _has_device(switch.get("device", "")):
            return
        owner, name = _owner_of(switch["where"])
        if owner is None:
            return
        if isinstance(getattr(owner, name), type):
            owner, name = getattr(owner, name), "__init__"
        patches.Patch(owner, name, make).install()

    def _with_keyword(self, switch: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(original)

            def passing(*args: Any, **kwargs: Any) -> Any:
                bound = _bound(signature, args, kwargs)
                if bound is None:
                    return original(*args, **kwargs)
                bound.apply_defaults()
                if bound.arguments.get(switch["keyword"], switch["off"]) == switch["off"]:
                    return original(*args, **kwargs)
                self._meet(switch["name"])
                if switch["name"] not in self._names_off:
                    return original(*args, **kwargs)
                arguments = {switch["keyword"]: switch["off"], **switch.get("with", {})}
                changed = signature.bind(*args, **kwargs)
                changed.arguments.update(arguments)
                return original(*changed.args, **changed.kwargs)

            return passing

        return make

    def _bypassed(self, switch: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """``function(called, *args)`` becomes ``called(*args)``: for keywords of its own, see ``drops``."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def passing(*args: Any, **kwargs: Any) -> Any:
                self._meet(switch["name"])
                if switch["name"] not in self._names_off:
                    return original(*args, **kwargs)
                keywords = {name: value for name, value in kwargs.items() if name not in switch.get("drops", ())}
                return args[0](*args[1:], **keywords)

            return passing

        return make

    def _seeing(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def passing(*args: Any, **kwargs: Any) -> Any:
                self._meet(name)
                return original(*args, **kwargs)

            return passing

        return make

    # -- what was met -----------------------------------------------------------------------------------------------

    def _meet(self, name: str) -> None:
        self._met.add(name)

    def _write(self) -> None:
        """Write the names met, in a process that trains: launchers and DataLoader workers use no settings."""
        if not self._trains:
            return
        names = sorted(self._met | set(_kinds_of_job()))
        with contextlib.suppress(OSError):
            Path(self._met_folder, f"met-{os.getpid()}.json").write_text(json.dumps(names), encoding="utf-8")


def _kinds_of_job() -> Iterator[str]:
    """Kinds of job that a variable of the environment may be about, as ``job:cuda``."""
    yield "job:torch"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield "job:cuda"
    else:
        yield "job:cpu"
    if "torch_npu" in sys.modules:
        yield "job:npu"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield f"job:{torch.distributed.get_backend()}"


def _seeders() -> Iterator[tuple[Any, str]]:
    """Functions that take a seed."""
    yield torch, "manual_seed"
    yield torch.random, "manual_seed"
    yield random, "seed"
    yield np.random, "seed"


def _has_device(device: str) -> bool:
    return not device or (device == "cuda" and torch.cuda.is_available()) or device == "cpu"


def _is_default_on(key: str, group: Mapping[str, Any]) -> bool:
    """True if an unset ``foreach`` means True: on a GPU, for parameters that all are there."""
    params = group["params"]
    return key == "foreach" and bool(params) and all(param.is_cuda for param in params)


def _owner_of(path: str) -> tuple[Any, str]:
    """The object or class that holds what ``path`` names, and its name there; None where it is not."""
    module, *names = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for name in names[:-1]:
            owner = getattr(owner, name)
        getattr(owner, names[-1])
    except (ImportError, AttributeError, RuntimeError):
        return None, ""
    return owner, names[-1]


def _value_of(switch: Mapping[str, Any]) -> Any:
    owner, name = _owner_of(switch.get("reads", switch["where"]))
    if owner is None:
        return _UNKNOWN
    try:
        return getattr(owner, name)() if switch["how"] == "function" else getattr(owner, name)
    except Exception:
        return _UNKNOWN


def _write(switch: Mapping[str, Any]) -> None:
    owner, name = _owner_of(switch["where"])
    try:
        if switch["how"] == "function":
            getattr(owner, name)(switch["off"], **switch.get("keywords", {}))
        else:
            setattr(owner, name, switch["off"])
    except Exception as error:
        _log.warning("trueline: %s cannot be switched off here: %s", switch["name"], error)


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments | None:
    with contextlib.suppress(TypeError):
        return signature.bind(*args, **kwargs)
    return None
