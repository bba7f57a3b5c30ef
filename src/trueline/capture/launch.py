"""Attaching to a training script that knows nothing of Trueline, inside each of its processes.

``trueline run`` puts ``attach/sitecustomize.py`` first on PYTHONPATH; that calls ``attach`` once torch is imported.
From there: optimizers and DDP modules are noted as they are constructed, and at the first training forward pass of a
model that one of these optimizers trains (or that one of these DDP modules wraps), watching begins. Nothing is
created before that, so that launchers, data workers and evaluation scripts leave no trace.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from trueline.capture.adapters.base import uncompiled
from trueline.capture.adapters.ddp import DdpAdapter
from trueline.capture.child_env import path_of_restart, plan_given, settings, tell_unseen, tell_watched
from trueline.capture.model import patches
from trueline.capture.model.failures import is_users
from trueline.capture.model.layout import is_fsdp2, unwrap
from trueline.capture.model.model_names import name_of_called
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.model.untraced import in_transform
from trueline.capture.model.wholes import Family, may_be_wrapped, reduces_inside
from trueline.capture.model.world import all_come, in_pipeline, world_size
from trueline.capture.probes.constructed_rates import constructed_rates
from trueline.capture.probes.dataloader import EpochProbe
from trueline.capture.probes.evaluations import PassesBeforeTraining
from trueline.capture.probes.loads import loads
from trueline.capture.step.call_sites import call_sites
from trueline.capture.step.exchange import TrainedAlone, leaves_alone
from trueline.capture.step.updates import is_compiled
from trueline.capture.watch import Watch, innermost
from trueline.schema.errors import ResumeError, TruelineError
from trueline.schema.plan import Plan
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.words import counted

_log = SafeLogger()

PATIENCE = 16
"""Updates of optimizers for which calls of modules are looked at to find a further model."""

LOOKED_FOR = 3
"""Updates of one optimizer at which the model behind it is looked for; it may train what is no module."""

MAX_MODELS = 8
"""Each has files, and a connection between ranks, of its own."""


def attach(watch: Callable[..., Watch]) -> None:
    """Wait for training in this process and then call ``watch`` (``trueline.watch``); called once torch is imported."""
    Attachment(watch).wait()


class Attachment:
    """Optimizers and DDP modules that this process has shown so far, and at last a Watch of each model that is trained.

    Further models write Runs inside the Run of the first (see ``trueline.watch``). ``arguments`` returns those of
    ``start``, in the process that trains.
    """

    def __init__(self, start: Callable[..., Watch], *, arguments: Callable[[], dict[str, Any]] = settings) -> None:
        self._watches: list[weakref.ref[Watch]] = []  # each lives as long as its model
        self._run_path = ""
        self._alone = ObjectTable[nn.Module, None]()  # models that this rank trains while the others train another
        self._start = start
        self._arguments = arguments
        self._failed = False
        self._optimizers: list[_KnownOptimizer] = []
        self._ddps: list[weakref.ref[nn.parallel.DistributedDataParallel]] = []
        self._loader = EpochProbe()
        self._before = PassesBeforeTraining()
        self._outermost: weakref.ref[nn.Module] | None = None
        self._updated: weakref.ref[nn.Module] | None = None
        self._fruitless: set[int] = set()
        self._listens_for = 0
        self._backwards = 0
        self._is_gathered = False  # until the next update: what is called has weights that FSDP2 has gathered
        self._called_model: weakref.ref[nn.Module] | None = None
        """Model that all ranks can only be known to train as they update: a stage of a pipeline (the one before it
        waits for none), or a model that is called in evaluation mode.
        """

    @property
    def watches(self) -> list[Watch]:
        """Watches of the models that are alive."""
        return [watch for ref in self._watches if (watch := ref()) is not None]

    @property
    def watch(self) -> Watch | None:
        """The Watch of the first model."""
        return self.watches[0] if self.watches else None

    def wait(self) -> None:
        """Listen for optimizers, DDP modules and the first training forward pass."""
        # nothing of it is imported or read where it is not asked for
        if (keys := plan_given()).get("preset") == "bits":
            from trueline.capture.record.early import begin_early

            begin_early(Plan.load(keys))
        call_sites.listen("DataLoader", "DistributedSampler", "optimizer", "eval")
        loads.listen()
        constructed_rates.listen()
        patches.optimizer_init.add(self._at_optimizer, after=True)
        patches.ddp_init.add(self._at_ddp, after=True)
        patches.module_call.add(self._at_call)
        patches.update_begins.add(self._at_update, keep=True)
        patches.backward.add(self._at_backward)
        atexit.register(self._at_exit)

    def know(self, optimizer: Any, *, trains: Sequence[torch.Tensor] = ()) -> None:
        """Note an optimizer that may have been made before ``wait``, inside of what a framework wraps around it, and
        what it ``trains`` where it holds something else.
        """
        inner = innermost(optimizer)
        is_new = all(entry.optimizer() is not inner for entry in self._optimizers)
        if is_new and isinstance(inner, torch.optim.Optimizer):
            self._note(inner, trains or _params_of(inner))

    def _at_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        self._note(optimizer, _params_of(optimizer))

    def _note(self, optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]) -> None:
        known_optimizer = _KnownOptimizer(optimizer, params)
        kept_entries = [entry for entry in self._optimizers if entry.optimizer() not in (None, optimizer)]
        self._optimizers = [*kept_entries, known_optimizer]
        for watch in self.watches:
            if known_optimizer.trains(watch.param_ids):
                watch.updates.add(optimizer)
        # of another model, whose first update may be the one that goes wrong
        if self._unwatched(known_optimizer):
            self._listen()

    def _at_ddp(self, ddp: nn.parallel.DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        """Take the comm hook before the user's script can, so that its own is chained behind."""
        self._ddps.append(weakref.ref(ddp))
        DdpAdapter(ddp)

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Any module is about to run. The hooks that watching puts on see this very call: it has not looked for any
        yet.
        """
        if in_transform():
            return
        if not torch.is_grad_enabled():
            self._look(module)
            return
        if id(module) in self._fruitless or self._is_gathered:
            return
        # the first call since the last update is that of the whole model, not of a part
        if self._outermost is None and module.training:
            self._outermost = weakref.ref(module)
        if not module.training:
            self._look(module)
        if not module.training and self._called_model is not None:
            return
        model = self._model_behind(module)
        if model is None:
            self._look(module)
            if self._run_path or not module.training:
                # asked once until the next update: a part of a model is called thousands of times
                self._fruitless.add(id(module))
            return
        if not module.training:
            self._called_model = weakref.ref(model)
            return
        if in_pipeline() and not _meets_replicas_only(model):
            patches.module_call.remove(self._at_call)
            self._called_model = weakref.ref(model)
            return
        self._take(model, called=module)

    def _look(self, module: nn.Module) -> None:
        """At a call that nothing is known to train by; once there is a Run, that of a watched model is seen there."""
        if not self._run_path:
            self._before.at_call(module)

    def _take(self, model: nn.Module, *, called: nn.Module | None = None) -> None:
        """Begin to watch ``model``, which is about to run, or the part of it that is ``called``."""
        self._called_model = None
        patches.module_call.remove(self._at_call)
        leaves = leaves_alone.set(True)
        early = sys.modules.get("trueline.capture.record.early")
        resume = early.pause_early() if early is not None else None
        try:
            watch = self._begin_another(model) if self._run_path else self._begin(model)
        except TrainedAlone as error:
            _log.warning("trueline: model '%s' is not watched, as %s.", name_of_called(model), error)
            self._alone.set(model, None)
            patches.module_call.add(self._at_call)
            return
        except Exception as error:
            if is_users(error):
                raise
            self._failed = True
            is_known = isinstance(error, (TruelineError, OSError, RuntimeError))
            why = str(error) if is_known else f"{type(error).__name__}: {error}"
            _log.warning("trueline: not watching: %s", why)
            if not self.watches:
                tell_unseen(why)
            return
        finally:
            leaves_alone.reset(leaves)
            if early is not None and resume is not None:
                resume()
                early.end_early()
        if watch is not None:
            tell_watched()
            if called is None or unwrap(called) is not unwrap(model):
                watch.follow_parts(called)
            watch.know_passes(self._before.passes_of(model))
            before = self.watches
            watch.epoch.follow(before[-1].epoch if before else self._loader)
            self._watches.append(weakref.ref(watch))
            self._run_path = self._run_path or watch.run_path
        self._listen()

    def _at_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to update. One whose parameters no watched model has may be that of another model; one
        that holds copies of parameters shows by this what it trains.
        """
        if self._failed:
            return
        self._is_gathered = False
        model = None if self._called_model is None else self._called_model()
        outermost = None if self._run_path or self._outermost is None else self._outermost()
        if model is None and outermost is not None:
            model = self._model_behind(outermost)
        if model is not None and any(entry is optimizer for entry in self._training(model)):
            self._take(model)
            if self._failed:
                return
        if not self._run_path:
            self._fruitless.clear()
        self._updated, self._outermost = self._outermost, None
        self._listens_for -= 1
        known_optimizer = next((entry for entry in self._optimizers if entry.optimizer() is optimizer), None)
        if known_optimizer is not None and known_optimizer.looked_for < LOOKED_FOR and self._unwatched(known_optimizer):
            known_optimizer.looked_for += 1
            self._listen()
        elif self._run_path and self._listens_for <= 0:
            patches.module_call.remove(self._at_call)

    def _at_backward(self, *args: Any, **kwargs: Any) -> None:
        """A backward pass begins: where no optimizer was made before, the script may update weights by hand."""
        if self._optimizers:
            patches.backward.remove(self._at_backward)
        else:
            self._backwards += 1

    def _at_exit(self) -> None:
        """Say why nothing was watched, where that is known."""
        params = [param for entry in self._optimizers for param in entry.params]
        is_seen = bool(self._run_path) or self._failed
        if not is_seen and any(is_compiled(param, update=update) for param in params for update in (False, True)):
            tell_unseen(
                "the model is called only inside of what torch.compile made of a function, where no call can be seen. "
                "Compile the model itself, torch.compile(model), and leave its call, loss.backward() and "
                "optimizer.step() outside of the function that is compiled."
            )
        elif self._backwards and not self._optimizers and not is_seen:
            tell_unseen(
                f"{counted(self._backwards, 'call')} of backward, and no optimizer of torch.optim was made. Where the "
                "script updates weights by hand, let an optimizer do that, as torch.optim.SGD(model.parameters(), lr), "
                "or a class of its own whose base is torch.optim.Optimizer: an update is seen by its step()."
            )

    def _listen(self) -> None:
        """Look at the calls of modules for some updates: each costs a microsecond."""
        self._fruitless.clear()
        self._listens_for = PATIENCE
        if any(entry.looked_for < LOOKED_FOR and self._unwatched(entry) for entry in self._optimizers):
            patches.module_call.remove(self._at_call)
            patches.module_call.add(self._at_call)

    def _begin(self, model: nn.Module) -> Watch:
        """Watch ``model``. Where torchelastic has started this process again after a failure the Run goes on, or, where
        it cannot hold this start as well (with fewer workers, say), another begins next to it.
        """
        arguments = self._arguments() | {"name": name_of_called(model)}
        optimizers = self._training(model)
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts == "0":
            return self._start(model, optimizers, **arguments)
        try:
            return self._start(model, optimizers, **arguments | {"resume": True, "overwrite": False})
        except ResumeError as error:
            path = path_of_restart(arguments["out"], restarts)
            _log.warning("trueline: %s This start is watched in '%s'.", error, path)
            return self._start(model, optimizers, **arguments | {"out": path})

    def _begin_another(self, model: nn.Module) -> Watch | None:
        """Watch ``model`` too, if all ranks come here with one of its name; else say so, as none may wait for another.
        Steps are recorded of the first model only.
        """
        run_path = self._run_path
        name = Watch.further_name(run_path, model, name_of_called(model)) or ""
        together = len(self._watches) < MAX_MODELS and (world_size() == 1 or all_come(purpose=name))
        if not together:
            for watch in self.watches[:1]:
                watch.note_unwatched(name)
            for entry in self._optimizers:
                if entry.trains({id(param) for param in model.parameters()}):
                    entry.looked_for = LOOKED_FOR
            return None
        arguments = self._arguments() | {"out": run_path, "overwrite": False, "name": name}
        arguments["plan"] |= {"preset": "workers", "when": [], "names": ["*"]}
        return self._start(model, self._training(model), **arguments)

    def _training(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """The optimizers that train ``model``, or that hold copies of what it trains."""
        param_ids = {id(param) for param in model.parameters()}
        alive = [(entry, optimizer) for entry in self._optimizers if (optimizer := entry.optimizer()) is not None]
        return [optimizer for entry, optimizer in alive if entry.trains(param_ids)] or [
            optimizer for _, optimizer in alive if _holds_copies(optimizer, model)
        ]

    def _model_behind(self, module: nn.Module) -> nn.Module | None:
        """The module to watch when ``module`` is called: itself, or the DDP module whose inside it is; None if it is
        not trained, or watched already.
        """
        inside = unwrap(module)
        param_ids = {id(param) for param in inside.parameters()}
        for watch in self.watches:
            param_ids -= watch.param_ids
        for alone in self._alone:
            param_ids -= {id(param) for param in alone.parameters()}
        if not param_ids:
            return None
        for ref in self._ddps:
            ddp = ref()
            if ddp is not None and ddp is not module and unwrap(ddp) is inside:
                return ddp if module is inside else module
        if any(entry.trains(param_ids) for entry in self._optimizers if entry.optimizer() is not None):
            return self._whole(module)
        if self._run_path:
            return None
        behind = self._updated is not None and self._updated() is module
        return module if behind or self._training(module) else None

    def _whole(self, part: nn.Module) -> nn.Module | None:
        """The model that ``part`` is a part of, or all of; None where that is known only at the next update."""
        alive = [entry for entry in self._optimizers if entry.optimizer() is not None]
        optimizer_of = {param_id: number for number, entry in enumerate(alive) for param_id in entry.param_ids()}

        def trainers(module: nn.Module) -> dict[int, int]:
            ids = (id(param) for param in module.parameters())
            return {param_id: optimizer_of[param_id] for param_id in ids if param_id in optimizer_of}

        own = trainers(part)
        has_all = sum(number in set(own.values()) for number in optimizer_of.values()) == len(own)
        wrapped = any(ref() is not None for ref in self._ddps) or (world_size() > 1 and may_be_wrapped())
        # the look through all objects is for jobs that may need it
        if reduces_inside(part) or (has_all and not wrapped):
            return part
        family = Family(part)
        self._is_gathered = family.is_gathered
        return None if self._is_gathered else family.whole(trainers)

    def _unwatched(self, known_optimizer: _KnownOptimizer) -> bool:
        """True if an optimizer was made for parameters that no watched model has."""
        if not self._run_path:
            return False
        watched = set[int]().union(*(watch.param_ids for watch in self.watches))
        return known_optimizer.optimizer() is not None and any(
            id(param) not in watched for param in known_optimizer.params
        )


def _meets_replicas_only(model: nn.Module) -> bool:
    """True if those that begin to watch ``model`` together are replicas of one stage of a pipeline."""
    wrapped = uncompiled(model)
    is_ddp = isinstance(wrapped, nn.parallel.DistributedDataParallel)
    return is_ddp or any(is_fsdp2(module) for module in wrapped.modules())


class _KnownOptimizer:
    """An optimizer and the ``params`` that it was made for, as long as it lives: DeepSpeed and Megatron put copies in
    their place. ``looked_for`` is at how many of its updates the model behind it was looked for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]) -> None:
        self.optimizer = weakref.ref(optimizer, self._ended)
        self.params = tuple(params)  # no weak references, with which torch could not swap them
        self.looked_for = 0

    def _ended(self, ref: object) -> None:
        self.params = ()

    def trains(self, param_ids: set[int]) -> bool:
        """True if one of the parameters with these ids is, or was, the optimizer's."""
        optimizer = self.optimizer()
        now = [] if optimizer is None else _params_of(optimizer)
        return any(id(param) in param_ids for param in now) or any(id(param) in param_ids for param in self.params)

    def param_ids(self) -> set[int]:
        """The ids of all that is, or was, the optimizer's."""
        optimizer = self.optimizer()
        return {id(param) for param in (*self.params, *([] if optimizer is None else _params_of(optimizer)))}


def _params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _holds_copies(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """True if it holds as many elements as ``model`` trains, in tensors that can be no other model's parameters."""
    trained = [param for param in model.parameters() if param.requires_grad]
    params = _params_of(optimizer)
    dtypes = {param.dtype for param in trained}
    foreign = all(not isinstance(tensor, nn.Parameter) or tensor.dtype not in dtypes for tensor in params)
    num_trained = sum(param.numel() for param in trained)
    return foreign and bool(trained) and sum(tensor.numel() for tensor in params) == num_trained
