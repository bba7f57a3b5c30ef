"""Digests of parameters and buffers, so that replicas can be held against each other bit by bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import Layout, local, named_buffers
from trueline.tensor.digest import digest_tensor


def param_digests(layout: Layout) -> Tensor:
    """int64 [P + F] digest of each watched, then each frozen parameter's own memory (its shard under FSDP); 0 for one
    that this rank does not hold any more.
    """
    params = [*layout.params, *(param for _, param in layout.frozen)]
    nothing = torch.zeros((), dtype=torch.int64, device=layout.device)
    return torch.stack([nothing if p is layout.gone else digest_tensor(local(p.detach())) for p in params])


def buffer_digests(model: nn.Module) -> tuple[list[str], Tensor | None]:
    """Names and int64 [B] digests of the registered buffers; None without buffers."""
    pairs = [(name, digest_tensor(local(buffer))) for name, buffer in named_buffers(model)]
    if not pairs:
        return [], None
    return [name for name, _ in pairs], torch.stack([digest for _, digest in pairs])
