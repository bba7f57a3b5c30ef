"""Runs as tasks of a Ray cluster: one task a run, on a node that has the resources which are asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError
from trueline.trials.frame.engines.local import GRACE_S, Local

_RESOURCES = ("num_cpus", "num_gpus", "memory")


@dataclass(frozen=True)
class Ray:
    """Starts the command in a task that takes ``resources``, on the cluster at ``address`` (None: the one that is found
    as Ray finds it, or else one that is started here).
    """

    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def from_options(cls, options: Sequence[str]) -> Ray:
        """Raises ``InputError`` for what Ray does not take, or where it is not installed."""
        _ray()
        address, resources = None, dict[str, float]()
        for text in options:
            name, _, value = text.partition("=")
            if name == "address" and value:
                address = value
            elif name in _RESOURCES and _is_number(value):
                resources[name] = float(value)
            else:
                raise InputError(
                    f"--engine is ray with '{text}'; give address=HOST:PORT or {', '.join(_RESOURCES)} with a number."
                )
        return cls(address, resources)

    def start(self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path) -> Task:
        ray = _ray()
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(f"--engine is ray, and no cluster is reached: {str(error).splitlines()[0]}") from None
        # a node keeps its own PATH and CUDA variables where the trial changes none
        changed = {name: value for name, value in environ.items() if os.environ.get(name) != value}
        task = ray.remote(max_retries=0, **self.resources)(_run)
        printed, folder = printed.absolute(), folder.absolute()
        began = printed.parent / "began"
        return Task(ray, task.remote(list(words), changed, str(printed), str(folder), str(began)), began)


@dataclass(frozen=True)
class Task:
    """A task of Ray that runs the command."""

    ray: Any
    reference: Any
    began: Path

    def wait(self, timeout_s: float) -> int | None:
        while not self.began.exists():  # it may have to wait for resources
            if self.ray.wait([self.reference], timeout=0.2)[0]:
                break
        ended, _ = self.ray.wait([self.reference], timeout=timeout_s)
        if not ended:
            return None
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, OSError):
                raise cause from None
            return 1

    def end(self) -> None:
        """Cancel it: the task ends the processes of the command. Ray interrupts a task once, which may be before it has
        begun or while it runs C code, so it is asked for until the task has ended.
        """
        until = time.monotonic() + 2 * GRACE_S
        while not self.ray.wait([self.reference], timeout=0)[0] and time.monotonic() < until:
            self.ray.cancel(self.reference)
            self.ray.wait([self.reference], timeout=1.0)


def _run(words: list[str], changed: dict[str, str], printed: str, folder: str, began: str) -> int | None:
    """On the node: to its end, or until Ray interrupts it, which it may do again while the command is ended. It does so
    as Ctrl-C would, which a cluster ignores that was started in the background; tasks have the main thread.
    """
    interrupts: list[int] = []
    # an exception could come between the start and its name, or in a finalizer, which drops it: the command would go on
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        started = Local().start(words, {**os.environ, **changed}, printed=Path(printed), folder=Path(folder))
        try:
            Path(began).touch()
            while (status := started.wait(0.2)) is None:
                if interrupts:
                    raise KeyboardInterrupt
            return status
        finally:
            with contextlib.suppress(OSError):
                started.end()
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError(f"--engine is ray, and Ray cannot be imported ({error}): pip install ray.") from None


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
