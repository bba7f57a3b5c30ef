"""DeepSpeed: ZeRO 0 to 3, by hooks that run when a gradient has accumulated, in front of DeepSpeed's own.

DeepSpeed reduces in such hooks (ZeRO 2 and 3, and ``overlap_comm``) or when ``engine.backward`` ends, and then keeps
what came of it: all of it in ``.grad`` (ZeRO 0), or the part of it that this rank's optimizer holds, of which the
engine's optimizer knows the place. That is read when the engine updates, which is the end of a step, whether the update
is skipped for an overflow or not. Losses are multiplied by the scale that float16 needs and divided by the number of
micro-batches before ``backward``; gradients are divided by that scale here.

Attributes of DeepSpeed without a documentation of their own: ``_take_model_step`` (0.9 to 0.19), ``_hp_mapping`` (since
0.7.7), ``averaged_gradients``, ``fp16_groups``, and of the parameters of ZeRO 3 those that begin with ``ds_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction
from trueline.capture.adapters.manual import first_hook
from trueline.capture.model import patches
from trueline.capture.model.framework_update import framework_update
from trueline.capture.model.layout import deepspeed_engine, experts, in_shards, is_engine, unwrap
from trueline.capture.model.live_objects import instances_of
from trueline.capture.model.mesh import Mesh, workers_in
from trueline.capture.model.untraced import skipped, untraced
from trueline.capture.probes.gradients import GradientProbe
from trueline.schema.errors import CaptureError

PRECEDENCE = 40


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> DeepSpeedAdapter | None:
    """The adapter of a DeepSpeed engine, or of the module inside one."""
    engine = _engine_of(model)
    return None if engine is None else DeepSpeedAdapter(engine, process_group)


class DeepSpeedAdapter(HookingAdapter):
    """Watches one engine, whatever its optimizer."""

    name = "deepspeed"

    def __init__(self, engine: Any, process_group: dist.ProcessGroup | None) -> None:
        group = process_group or getattr(engine, "seq_data_parallel_group", None) or engine.data_parallel_group
        if not hasattr(engine, "_take_model_step"):
            raise CaptureError(
                f"This version of DeepSpeed has no {type(engine).__name__}._take_model_step, where Trueline sees "
                "updates. docs/frameworks.md has the versions that were tried: use one of these, or report it."
            )
        self._engine = engine
        self._stage = int(engine.zero_optimization_stage())
        super().__init__(_mesh(engine, workers_in(group), self._stage))
        self.own = experts(engine.module)
        self._accumulated: set[int] = set()
        self._micros = 1
        if self.mesh.flat:
            self.notes.append(
                "ZeRO 3 pads what it gathers and scatters with memory that nothing has filled: in recorded steps these "
                "collectives are left out, and what the optimizer calls on a rank that holds padding."
            )
        effects = {"offload_optimizer": "moves {} to the host", "round_robin_gradients": "deals {} out in turn"}
        hiding = [name for name in effects if self._stage > 0 and _setting(engine, f"zero_{name}")]
        self._hides = bool(hiding)
        self.notes += [
            f"DeepSpeed {effects[name].format('reduced gradients')} ({name}): they are not compared with the mean of "
            "what the ranks had before the reduction, nor all parameters with the copies that the optimizer updates."
            for name in hiding
        ]

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let accumulation hooks report to ``probe``, and the engine what came of the reduction when it updates."""
        self.detach()
        self._probe, self._guard = probe, guard
        probe.received = self._reduced
        patches.backward.add(self._at_backward)
        for param in probe.layout.params:
            if param.requires_grad:
                self.handles.append(first_hook(param, self._look))

    def reduction(self) -> Reduction:
        """DeepSpeed's own, in the dtype in which it communicates: a division, a sum, and the sum of micro-batches."""
        dtype = str(getattr(self._engine, "communication_data_type", None) or torch.float32)
        return Reduction(
            dtype=dtype,
            roundings=len(self.mesh.workers) + 2 + self._micros,
            lossy=bool(_setting(self._engine, "zero_quantized_gradients")),
            in_parts=self._stage > 0,
            returned=not self._hides,
            received=False,
        )

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        super().detach()

    def follow(self, before: Callable[[Any], None], after: Callable[[], None]) -> Any:
        """Call ``before`` and ``after`` around each update of the engine; returns a handle."""
        return _Updates(self._engine, before, after)

    def _at_backward(self, *args: Any, **kwargs: Any) -> None:
        """Note where earlier micro-batches are in ``.grad`` still, so that the hook finds their sum there."""
        probe = self._probe
        if probe.active:
            self._accumulated = {id(param) for param in probe.layout.params if param.grad is not None}

    def _look(self, param: Tensor) -> None:
        probe = self._probe
        if not probe.active or param.grad is None:
            return
        with self._guard("gradients"):
            gradient = self._unscaled(param.grad)
            pair = (param, in_shards(gradient, self.mesh.shards) if self.mesh.shards > 1 else gradient)
            # where ``.grad`` holds the earlier micro-batches already, it is their sum and replaces them
            probe.see("local", [pair], add=id(param) not in self._accumulated)

    def _unscaled(self, gradient: Tensor) -> Tensor:
        scale = _scale(self._engine.optimizer)
        return gradient if scale is None else gradient.float() / scale

    def _reduced(self) -> None:
        """Show what the reduction returned, as far as this rank keeps it."""
        self._micros = int(self._engine.gradient_accumulation_steps())
        if self._hides:
            return
        pairs = [(param, self._unscaled(part)) for param, part in self._parts()]
        if self.mesh.shards > 1:
            self._probe.see("reduced", pairs, shard=self.mesh.shard)
        else:
            self._probe.see("reduced", pairs)

    def _parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        optimizer, params = self._engine.optimizer, self._probe.layout.params
        if self.mesh.shards > 1:
            yield from _parts_of_zero3(optimizer, self.mesh.shard)
        elif self._stage == 0:
            yield from ((param, param.grad) for param in params if param.grad is not None)
        else:
            for param in params:
                part = _own_part(param)
                if part is not None:
                    yield param, part


class _Updates:
    """Stands for ``engine._take_model_step`` until it is removed."""

    def __init__(self, engine: Any, before: Callable[[Any], None], after: Callable[[], None]) -> None:
        self._engine = engine
        self._original = original = engine._take_model_step

        @skipped
        def take_model_step(*args: Any, **kwargs: Any) -> Any:
            with framework_update():
                untraced(before, engine.basic_optimizer)
                result = original(*args, **kwargs)
                untraced(after)
            return result

        self._replacement = engine._take_model_step = take_model_step

    def remove(self) -> None:
        """Put the original back."""
        # somebody may have put another in its place since, which calls this one
        if self._engine.__dict__.get("_take_model_step") is self._replacement:
            del self._engine._take_model_step


def _engine_of(model: nn.Module) -> Any:
    """The engine that ``model`` is, or is inside of; None without. Modules do not know theirs: it is searched for."""
    kind = deepspeed_engine()
    if kind is None or is_engine(model):
        return model if kind is not None else None
    inside = unwrap(model)
    return next(
        (engine for engine in instances_of(kind) if engine.__dict__.get("optimizer") and unwrap(engine) is inside), None
    )


def _mesh(engine: Any, workers: Mesh, stage: int) -> Mesh:
    """Replicas, but with ZeRO 3 shards: each rank holds a part of each parameter."""
    cut = stage == 3 and any(hasattr(param, "ds_tensor") for param in engine.module.parameters())
    return replace(workers, roles=("shard",), flat=True) if cut and len(workers.members) > 1 else workers


def _scale(optimizer: Any) -> float | Tensor | None:
    """Factor by which the loss was multiplied before ``backward``, None for none. ZeRO 0 in float16 does not scale by
    itself (0.19.8: its ``FP16_UnfusedOptimizer`` is no ``ZeROOptimizer``).
    """
    if not hasattr(optimizer, "scale_if_loss"):
        return None
    if getattr(optimizer, "custom_loss_scaler", False):
        return float(optimizer.external_loss_scale)
    if (scaler := getattr(optimizer, "torch_autocast_gradscaler", None)) is not None:
        return getattr(scaler, "_scale", None)
    scale = getattr(getattr(optimizer, "loss_scaler", None), "loss_scale", 1.0)
    return None if scale == 1.0 else float(scale)


def _own_part(param: Any) -> Tensor | None:
    """The mean gradient of ``param`` where this rank's optimizer holds it, zeros elsewhere; None if it holds none."""
    mapping = getattr(param, "_hp_mapping", None)
    if mapping is None or mapping.use_offload:
        return None
    gradients = mapping.gradient_dict.get(mapping.param_group_index)
    if gradients is None:
        return None
    address, part = mapping.lp_fragment_address, gradients[param._index_in_param_group].reshape(-1)
    if address.numel == param.numel():
        return part[: param.numel()].view(param.shape)
    start = address.start if part.numel() == param.numel() else 0  # all of it is kept with float32 accumulation
    flat = torch.zeros(param.numel(), dtype=part.dtype, device=part.device)
    flat[address.start : address.start + address.numel] = part[start : start + address.numel]
    return flat.view(param.shape)


def _parts_of_zero3(optimizer: Any, shard: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """(parameter, this rank's shard [C] of its mean gradient); none where the optimizer was moved off the device."""
    gradients = getattr(optimizer, "averaged_gradients", None) or {}
    for index, params in enumerate(optimizer.fp16_groups):
        for param, part in zip(params, gradients.get(index) or (), strict=False):
            width, num_left = part.numel(), param.ds_numel - shard * part.numel()
            flat = part.reshape(-1)
            yield (
                param,
                flat
                if num_left >= width
                else nn.functional.pad(flat[: max(num_left, 0)], (0, width - max(num_left, 0))),
            )


def _setting(engine: Any, name: str) -> Any:
    setting = getattr(engine, name, None)
    return setting() if callable(setting) else setting
