"""Attaching to a training script that knows nothing of Trueline, inside each of its processes.

``trueline run`` puts ``attach/sitecustomize.py`` first on PYTHONPATH; that calls ``attach`` once torch is imported.
From there: optimizers and DDP modules are noted as they are constructed, and at the first training forward pass of a
model that one of these optimizers trains (or that one of these DDP modules wraps), watching begins. Nothing is
created before that, so that launchers, data workers and evaluation scripts leave no trace.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trueline.capture import seams
from trueline.capture.adapters.ddp import DdpAdapter
from trueline.capture.layout import unwrap
from trueline.capture.probes.dataloader import DataLoaderProbe
from trueline.capture.watch import Watch
from trueline.schema.errors import ResumeError, TruelineError

_log = logging.getLogger("trueline")

RUN, PLAN, OVERWRITE, RESUME = "TRUELINE_RUN", "TRUELINE_PLAN", "TRUELINE_OVERWRITE", "TRUELINE_RESUME"


def environment(
    *, out: str, plan: dict[str, Any], overwrite: bool, base: dict[str, str], resume: bool = False
) -> dict[str, str]:
    """``base`` with what a process needs to attach itself: the Run, the Plan as JSON, and our sitecustomize on
    PYTHONPATH.
    """
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attach")
    path = os.pathsep.join([here, *filter(None, [base.get("PYTHONPATH")])])
    return base | {
        RUN: os.path.abspath(out),
        PLAN: json.dumps(plan),
        OVERWRITE: "1" if overwrite else "",
        RESUME: "1" if resume else "",
        "PYTHONPATH": path,
    }


def attach(watch: Callable[..., Watch]) -> None:
    """Wait for training in this process and then call ``watch`` (``trueline.watch``); called once torch is imported."""
    Attachment(watch).wait()


class Attachment:
    """What this process has shown so far: optimizers, DDP modules, and at last the Watch."""

    def __init__(self, start: Callable[..., Watch]) -> None:
        self.watch: Watch | None = None
        self._start = start
        self._failed = False
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._ddps: list[weakref.ref[nn.parallel.DistributedDataParallel]] = []
        self._loader = DataLoaderProbe()

    def wait(self) -> None:
        """Listen for optimizers, DDP modules and the first training forward pass."""
        seams.optimizer_init.add(self._at_optimizer)
        seams.ddp_init.add(self._at_ddp)
        seams.module_call.add(self._at_call)
        atexit.register(self._at_exit)

    def _at_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def _at_ddp(self, ddp: nn.parallel.DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        """Take the comm hook before the user's script can, so that its own is chained behind."""
        self._ddps.append(weakref.ref(ddp))
        DdpAdapter(ddp)

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Any module is about to run. The hooks that watching puts on see this very call: it has not looked for any
        yet.
        """
        if not (module.training and torch.is_grad_enabled()):
            return
        model = self._model_behind(module)
        if model is None:
            return
        seams.module_call.remove(self._at_call)
        try:
            self.watch = self._begin(model)
            self.watch.use_loader_probe(self._loader)
        except (TruelineError, OSError, RuntimeError) as error:
            self._failed = True
            _log.warning("trueline: not watching: %s", error)

    def _begin(self, model: nn.Module) -> Watch:
        """Watch ``model``. Where torchelastic has started this process again after a failure the Run goes on, or, where
        it cannot hold this start as well (with fewer workers, say), another begins beside it.
        """
        optimizers = [one for one in self._training() if _trains(one, {id(param) for param in model.parameters()})]
        settings = _settings()
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts == "0":
            return self._start(model, optimizers, **settings)
        try:
            return self._start(model, optimizers, **settings | {"resume": True, "overwrite": False})
        except ResumeError as error:
            beside = f"{settings['out']}.restart{restarts}"
            _log.warning("trueline: %s This start is watched in '%s'.", error, beside)
            return self._start(model, optimizers, **settings | {"out": beside})

    def _training(self) -> list[torch.optim.Optimizer]:
        return [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]

    def _model_behind(self, module: nn.Module) -> nn.Module | None:
        """What to watch when ``module`` is called: itself, or the DDP module whose inside it is; None if it is not
        trained.
        """
        inside = unwrap(module)
        for ref in self._ddps:
            ddp = ref()
            if ddp is not None and ddp is not module and unwrap(ddp) is inside:
                return ddp if module is inside else module
        held = {id(param) for param in inside.parameters()}
        return module if any(_trains(optimizer, held) for optimizer in self._training()) else None

    def _at_exit(self) -> None:
        if self.watch is None and not self._failed and any(ref() is not None for ref in self._optimizers):
            _log.warning("trueline: no training step was seen in this process, so no Run was written.")


def _settings() -> dict[str, Any]:
    """What ``trueline run`` left in the environment, as arguments of ``trueline.watch``."""
    return {
        "out": os.environ[RUN],
        "plan": json.loads(os.environ.get(PLAN) or "{}"),
        "overwrite": bool(os.environ.get(OVERWRITE)),
        "resume": bool(os.environ.get(RESUME)),
    }


def _trains(optimizer: torch.optim.Optimizer, held: set[int]) -> bool:
    """Whether one of the parameters with these ids is the optimizer's."""
    return any(id(param) in held for group in optimizer.param_groups for param in group["params"])
