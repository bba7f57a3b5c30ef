"""The first step of a training script that knows nothing of it, measured just before its update, where the process
ends.

``trueline trial`` hands ``Asked`` down in the environment, and ``attach/sitecustomize.py`` calls ``attach`` once torch
is imported. Random streams are seeded, dropout is off and batch normalisation uses its running statistics. Batches of
every DataLoader are changed as asked; what the loader draws and what the model draws are streams of their own, so that
batches are the same whatever a model draws.

Letters: k sketch length, M backward passes of the step.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from trueline.capture.child_env import TRIAL
from trueline.capture.model import patches
from trueline.capture.model.graph import nodes_below
from trueline.capture.model.layout import local
from trueline.capture.model.random_streams import RandomStreams
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.model.world import own_rank, world_size
from trueline.capture.probes.losses.descent import roots_of
from trueline.capture.seeding import seed_all
from trueline.capture.trial.changed_batches import Unchangeable, changed, leaves, rows_of, what_counts
from trueline.capture.trial.moved_weights import Trained, signs_of, still_rows
from trueline.schema.formats import FORMATS
from trueline.schema.safe_logger import SafeLogger
from trueline.tensor.sketch import SignBank

SKETCH = 1021
"""k: the relative standard error of a squared difference of sketches is sqrt(2/k), 4 %."""

MOST_SIGNS = 2**22
LOOKED_AT = 4096
"""Operations below a loss among which one with weights of classes is looked for."""
PATIENCE_S = 60.0
"""Seconds that a rank waits for the others before it goes, so that a launcher does not end them."""

_log = SafeLogger()


def attach() -> None:
    """Wait for the first step in this process; called once torch is imported."""
    FirstStep(**json.loads(os.environ[TRIAL])).wait()


class FirstStep:
    """Changes batches, measures the first step, and ends the process before its update, so that nothing which a script
    does at its end is done.

    ``out`` is where ``rank0.npz`` and so on go; ``change`` of batches, see ``changed_batches``; ``nudge`` multiplies
    each weight by 1 + or - so much at random before it is used; ``move`` moves the parameters at the places ``among``
    by + or - so many times their root mean square: at random but in every run with the same signs, or with those of the
    gradient of a run that left its ``signs`` in the folder ``along``.
    """

    def __init__(
        self,
        out: str,
        *,
        change: Any = "none",
        seed: int = 0,
        model_seed: int = 1,
        nudge: float = 0.0,
        move: float = 0.0,
        among: Sequence[int] = (),
        along: str = "",
        signs: bool = False,
    ) -> None:
        self._folder, self._change, self._nudge, self._seed, self._model_seed = out, change, nudge, seed, model_seed
        self._step, self._among = move, frozenset(among)
        self._along, self._leaves_signs, self._signs = along, signs, dict[str, Any]()
        self._loader_stream: RandomStreams | None = None
        self._batches: weakref.WeakKeyDictionary[Any, list[dict[str, Any]]] = weakref.WeakKeyDictionary()
        self._last: list[dict[str, Any]] = []
        self._losses: list[Tensor] = []
        self._params: dict[int, tuple[str, Tensor]] = {}
        self._trained: list[Trained] = []
        self._call_order: dict[int, int] = {}
        self._gradients: dict[str, Tensor] | None = None
        self._facts: dict[str, Any] = {"unit": 0.0, "batch_norms": 0, "normalises_batch": False, "problem": ""}
        self._facts |= {"weighted": False, "closure": False, "slopes": []}

    def wait(self) -> None:
        seed_all(self._seed, dropout=False)
        fetch = patches.Patch(dataloader._BaseDataLoaderIter, "__next__", patches.calling(self._at_fetch))
        fetch.install()
        patches.module_call.add(self._at_call, keep=True)
        patches.backward.add(self._at_backward, keep=True)
        for norm in patches.norms:
            norm.add(self._at_norm, keep=True)
        patches.scaler_step.add(self._at_update, keep=True)
        register_optimizer_step_pre_hook(Hook(self._at_update))
        register_optimizer_step_post_hook(Hook(self._after_update))

    # -- batches ---------------------------------------------------------------------------------------------------

    def _at_fetch(self, original: Any, iterator: Any) -> Any:
        if self._loader_stream is not None:
            self._loader_stream.put_back()
        batch = original(iterator)
        self._loader_stream = RandomStreams(torch.device("cpu"))
        batches = self._batches.setdefault(iterator, [])
        torch.manual_seed(self._model_seed + len(batches))
        random.seed(self._model_seed + len(batches))
        np.random.seed((self._model_seed + len(batches)) % 2**32)
        if not self._losses:
            self._last = batches
        return self._changed(batch, iterator, batches)

    def _changed(self, batch: Any, iterator: Any, batches: list[dict[str, Any]]) -> Any:
        batch_size = getattr(iterator._index_sampler, "batch_size", None) if iterator._auto_collation else None
        facts: dict[str, Any] = {"rows": 0, "sure": False, "counts": {}, "elements": 0, "unpadded": ""}
        batches.append(facts)
        try:
            rows = rows_of(batch, batch_size if isinstance(batch_size, int) else None)
            facts |= {"rows": rows.count, "sure": rows.sure, "counts": what_counts(batch, rows.count)}
            facts["elements"] = max(x.numel() for _, x in leaves(batch))
            if self._change == "none":
                facts["unpadded"] = _why_not(batch, "padding", rows.count)
            return changed(batch, self._change, rows.count)
        except Unchangeable as why:
            facts["problem"] = str(why)
            self._facts["problem"] = self._facts["problem"] or str(why)
        except Exception as error:
            self._facts["problem"] = f"the batch could not be read ({type(error).__name__}: {error})"
        return batch

    # -- the step --------------------------------------------------------------------------------------------------

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not torch.is_grad_enabled() or in_backward() or torch.compiler.is_compiling():
            return
        for part in module.modules() if module.training else ():
            if isinstance(part, _BatchNorm) and part.training:
                self._facts["batch_norms"] += 1
                if part.running_mean is None:
                    self._facts["normalises_batch"] = True
                part.eval()
        for param in module.parameters(recurse=False):
            self._call_order.setdefault(id(param), len(self._call_order))
        self._see_precision([*args, *kwargs.values(), *module.parameters(recurse=False)])
        new = [(name, param) for name, param in module.named_parameters() if id(param) not in self._params]
        still = still_rows(module) if new else {}
        for name, param in new:
            self._params[id(param)] = (name, param)
            self._move(name, param, still.get(id(param)))

    def _see_precision(self, values: list[Any]) -> None:
        dtypes = [x.dtype for x in values if isinstance(x, Tensor) and x.is_floating_point()]
        kinds = {x.device.type for x in values if isinstance(x, Tensor)}
        dtypes += [torch.get_autocast_dtype(kind) for kind in kinds - {"meta"} if torch.is_autocast_enabled(kind)]
        names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        if "cuda" in kinds and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32):
            names.append("tfloat32")
        units = [FORMATS[name].unit for name in names if name in FORMATS]
        self._facts["unit"] = max([self._facts["unit"], *units])

    def _move(self, name: str, param: Tensor, still: int | None) -> None:
        shard = local(param.detach())
        if not shard.is_floating_point():
            return
        if self._nudge:
            with torch.no_grad():
                shard.add_(shard * signs_of(shard, seed=len(self._params)) * self._nudge)
        if param.requires_grad and (still is None or shard.shape == param.shape):
            self._trained.append(trained := Trained.of_param(name, param, index=len(self._params), still=still))
            if trained.index in self._among:
                trained.move(self._step, self._signs_along().get(f"signs/{trained.index}"))

    def _signs_along(self) -> dict[str, Any]:
        if self._along and not self._signs:
            with np.load(Path(self._along, f"rank{own_rank()}.npz")) as arrays:
                self._signs = {name: arrays[name] for name in arrays.files if name.startswith("signs/")}
        return self._signs

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if in_backward():
            return
        roots = roots_of(tensors)
        if roots:
            self._facts["weighted"] |= any(
                getattr(node, "_saved_weight", None) is not None
                for node in itertools.islice(nodes_below(roots), LOOKED_AT)
                if type(node).__name__.startswith("NllLoss")
            )
            self._losses.append(sum((root.detach().double().sum() for root in roots), start=torch.zeros(())))

    def _at_norm(self, *args: Any, **kwargs: Any) -> None:
        """Before clipping, which is not linear."""
        if self._losses and self._gradients is None:
            self._measure(None)

    def _at_update(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not self._losses:
            return
        # A GradScaler's step has itself as first argument, and the optimizer as second.
        updates = next((value for value in (optimizer, *args) if isinstance(value, torch.optim.Optimizer)), None)
        try:
            if self._gradients is None:
                self._measure(updates)
            self._write(updates)
        except BaseException as error:
            _log.error("trueline: the first step was not measured: %s: %s", type(error).__name__, error)
            _end(1)
        self._wait_for_others()
        _end(0)

    def _after_update(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Only with a closure is there a backward pass now that was not there before the update."""
        self._facts["closure"] = True
        self._at_update(optimizer)

    def _measure(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._gradients = self._sketches(optimizer)
        if not self._step:
            self._trained.sort(key=lambda trained: self._call_order.get(id(trained.param), len(self._call_order)))
            self._facts["slopes"] = [trained.slope() for trained in self._trained]
        if self._leaves_signs:
            packed = {f"signs/{trained.index}": trained.packed() for trained in self._trained}
            self._signs = {name: signs for name, signs in packed.items() if signs is not None}

    def _sketches(self, optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
        params = [(name, param) for name, param in self._params.values() if param.grad is not None]
        if not params and optimizer is not None:
            params_held = [param for group in optimizer.param_groups for param in group["params"]]
            params = [(f"parameter {n}", param) for n, param in enumerate(params_held) if param.grad is not None]
        sketches: dict[str, Tensor] = {}
        for index, (name, param) in enumerate(params):
            assert param.grad is not None
            sketches[name if name not in sketches else f"{name} ({index})"] = sketch(local(param.grad), name)
        return sketches

    def _write(self, optimizer: torch.optim.Optimizer | None) -> None:
        assert self._gradients is not None
        groups = [] if optimizer is None else optimizer.param_groups
        param_ids = {id(param) for group in groups for param in group["params"]}
        # Parameters of a generator, say, have no gradient by design.
        indices = {trained.index for trained in self._trained if id(trained.param) in param_ids}
        self._facts["slopes"] = [slope for slope in self._facts["slopes"] if slope["place"] in indices]
        facts = self._facts | {"world_size": world_size(), "batches": self._last[: len(self._losses)]}
        arrays = {f"gradient/{name}": gradient.cpu().numpy() for name, gradient in self._gradients.items()}
        arrays |= self._signs if self._leaves_signs else {}
        losses = torch.stack([loss.cpu() for loss in self._losses]).numpy()
        file = io.BytesIO()
        np.savez(file, losses=losses, facts=np.array(json.dumps(facts)), **arrays)
        path = Path(self._folder, f"rank{own_rank()}.npz")
        path.with_suffix(".part").write_bytes(file.getvalue())
        path.with_suffix(".part").replace(path)

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(Path(self._folder).glob("rank*.npz"))) < world_size() and time.monotonic() < deadline:
            time.sleep(0.02)


def sketch(gradient: Tensor, name: str) -> Tensor:
    """float64 [at most k]: rows of k elements, each with a random sign, added up; the gradient itself if it is short.

    Linear, and the square of its norm is that of the gradient on average.
    """
    flat = (gradient.to_dense() if gradient.layout != torch.strided else gradient).detach().flatten()
    if flat.numel() <= SKETCH:
        return flat.double()
    whole = flat.numel() // SKETCH
    signs = SignBank(capacity=min(whole + 1, MOST_SIGNS), device=flat.device).signs(name, min(whole + 1, MOST_SIGNS))
    total = torch.zeros(SKETCH, dtype=torch.float64, device=flat.device)
    for start in range(0, whole, 4096):
        rows = flat[start * SKETCH : min(start + 4096, whole) * SKETCH].view(-1, SKETCH).double()
        sign_rows = torch.arange(start, start + len(rows), device=flat.device) % len(signs)
        total += signs[sign_rows].double() @ rows
    total[: flat.numel() - whole * SKETCH] += signs[-1].double() * flat[whole * SKETCH :].double()
    return total


def _why_not(batch: Any, change: Any, rows: int) -> str:
    try:
        changed(batch, change, rows)
    except Unchangeable as why:
        return str(why)
    return ""


def _end(status: int) -> None:
    """Without what a script registered for its end: it would save a model that was not trained."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
