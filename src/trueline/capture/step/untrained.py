"""A model of which no update is ever seen: whether its weights are as they were, and what is said then."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import local, part_of
from trueline.schema.finding import NO_UPDATE, Finding

_MAX_PARAMS, _MAX_ELEMENTS = 16, 8
"""Parameters that are looked at, and elements of each: an update of any optimizer moves nearly all."""
FEWEST_PASSES = 2
"""Backward passes from which on an update is missed: one may be all that a script is about."""


class Untrained:
    """Knows some elements of ``params`` as they are now. No parameter is held: others may come in their place."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._before = _samples(params)

    def are_unchanged(self, params: Sequence[Tensor]) -> bool | None:
        """True if none of them has changed; None where none could be looked at again."""
        pairs = [
            (before, after)
            for before, after in zip(self._before, _samples(params), strict=False)
            if before is not None and after is not None and before.shape == after.shape
        ]
        return all(torch.equal(before, after.to(before)) for before, after in pairs) if pairs else None


def _samples(params: Sequence[Tensor]) -> list[Tensor | None]:
    return [_sample(param) for param in params[:: max(len(params) // _MAX_PARAMS, 1)]]


def _sample(param: Tensor) -> Tensor | None:
    """[at most 8] elements of what this rank holds; None where its memory cannot be read (freed shards, quantized)."""
    try:
        shard = local(param.detach())
        if not shard.numel() or shard.is_quantized or not shard.is_contiguous():
            return None
        if (shard.storage_offset() + shard.numel()) * shard.element_size() > shard.untyped_storage().nbytes():
            return None
        flat = shard.view(-1)
        return flat[:: max(flat.numel() // _MAX_ELEMENTS, 1)][:_MAX_ELEMENTS].clone()
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def class_name(model: nn.Module) -> str:
    """The name of its class; ``Linear`` also within FSDP1, or where FSDP2 has made an ``FSDPLinear`` of it."""
    inside = part_of(model, "_fsdp_wrapped_module")
    kind = type(model if inside is None else inside)
    return (
        kind.__bases__[-1].__name__ if len(kind.__bases__) > 1 and kind.__name__.startswith("FSDP") else kind.__name__
    )


def no_update(model: str, num_passes: int, *, rank: int, are_unchanged: bool | None) -> Finding:
    """That a rank made ``num_passes`` backward passes through ``model``, and no update."""
    weights = f", the weights of `{model}` never changed" if are_unchanged else f" for `{model}`"
    return Finding(
        code=NO_UPDATE,
        severity="error" if are_unchanged else "warning",
        claim=f"{num_passes} backward passes on rank {rank}, and no update: no `optimizer.step()` was called{weights}.",
        ranks=(rank,),
        measured=0.0,
        unit="updates",
        false_alarm_rate=0.0 if are_unchanged else None,
        evidence={"model": model, "backward_passes": num_passes},
        next=(
            "Call `optimizer.step()` after `loss.backward()`, of the optimizer that holds this model's parameters.",
            "Where gradients are accumulated, look whether the job ends before the first update is due.",
        ),
    )
