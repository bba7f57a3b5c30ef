"""A Run that is recorded between calls of start, stop and step, instead of from one update to the next."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import trueline
from trueline.capture.job.environment import flags, versions
from trueline.capture.job.safe_sink import SafeSink
from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.model.world import world_size
from trueline.capture.record.session import Session
from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.plan import Plan
from trueline.schema.safe_logger import SafeLogger
from trueline.store.writer import RunWriter

PATIENCE_S = 60.0
"""How long a rank waits for the one that makes the Run."""

_log = SafeLogger()


class NoModel(nn.Module):
    """Stands for the model where only calls of torch are recorded: the recorder listens from its forward pass on."""

    def forward(self) -> None:
        """Nothing."""


class Recording:
    """Steps of ``model`` recorded as ``plan`` says into the Run at ``path``, which rank ``lead`` makes.

    Raises ``InputError`` where the Run cannot be made.
    """

    def __init__(self, model: nn.Module, *, plan: Plan, path: str, rank: int, lead: int) -> None:
        self.model = model
        self._lead, self._rank = lead, rank
        self._notes: list[str] = []
        self._outlet = SafeSink(_open_sink(path, rank=rank, lead=lead), rank=rank)
        self._plan = plan
        self._describe()
        self._session = Session(model, plan=plan, write=self._outlet.write, failed=self._failed, notes=self._notes)
        self._update_hook: Any = None
        self._updated = False
        self._paused = False

    def start(self, step: int) -> None:
        """Record from here, as part of ``step``; it goes on where that one was stopped."""
        if self._update_hook is None:
            self._updated = False
            self._outlet.step = step
            self._session.open_step(step)
            self._update_hook = register_optimizer_step_pre_hook(self._before_update)
            if isinstance(self.model, NoModel):
                self.model()
        elif self._paused:
            self._session.resume()
        self._paused = False

    def stop(self) -> None:
        """Record no further calls until ``start``; gradients of what was recorded still come."""
        if self._update_hook is not None and not self._paused:
            self._session.pause()
            self._paused = True

    def end_step(self) -> None:
        """The step is over: what is not yet recorded of parameters and gradients is, and all of it is written."""
        if self._update_hook is None:
            return
        self._update_hook.remove()
        self._update_hook = None
        if self._paused:
            self._session.resume()
            self._paused = False
        if not self._updated:
            self._session.begin_update()
        self._session.close_step()

    def close(self) -> None:
        """Write what is left and seal the Run. A step that is still open is ended."""
        self.end_step()
        self._session.detach()
        if self._notes:
            self._describe()
        self._outlet.close()

    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if not self._updated:
            self._updated = True
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
            self._session.begin_update(optimizer, gradients_ready=closure is None)

    def _describe(self) -> None:
        manifest = Manifest(
            trueline_version=trueline.__version__,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            world_size=world_size(),
            command=list(sys.argv),
            plan=self._plan.model_dump(mode="json"),
            notes=list(self._notes),
        )
        device = next((str(param.device) for param in self.model.parameters()), "cpu")
        env = RankEnv(
            rank=self._rank,
            world_size=world_size(),
            hostname=platform.node(),
            pid=os.getpid(),
            device=device,
            versions=versions(),
            flags=flags(),
            environ=dict(os.environ),
        )
        self._outlet.describe(manifest if self._rank == self._lead else None, env)

    def _failed(self, error: Exception) -> None:
        self._notes.append(f"recording broke down on rank {self._rank} and went on without: {error!r}")
        _log.warning("trueline: recording broke down, training goes on unrecorded: %r", error)


def module_kinds(model: nn.Module) -> dict[str, str]:
    """Class names of the modules inside ``model`` by FQN, without what wrappers put in."""
    return {clean_name(name): type(module).__name__ for name, module in unwrap(model).named_modules() if name}


def _open_sink(path: str, *, rank: int, lead: int) -> RunWriter:
    """This rank's writer. Ranks are started by hand, one by one, so all but the lead wait until the Run is there."""
    manifest = Path(path) / "manifest.json"
    deadline = time.monotonic() + PATIENCE_S
    while rank != lead and not manifest.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"Rank {rank} found no Run at '{path}' in {PATIENCE_S:.0f} s, which rank {lead} was to make. Record "
                f"rank {lead} too, and let all ranks share the directory."
            )
        time.sleep(0.05)
    return RunWriter(path, rank=rank, creates=rank == lead)
