"""Copies in higher precision that an optimizer updates in place of the model's own parameters.

Attributes of frameworks without a documentation of their own: ``_hp_mapping`` of DeepSpeed's ZeRO 1 and 2 (since
0.7.7), ``main_param`` of Megatron-core (since 0.9).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.layout import Layout
from trueline.capture.model.world import own_rank, ranks_of


@dataclass(frozen=True)
class Copy:
    """Elements [n] of the model's parameter ``name`` (``working``) and of the copy that is updated. Not
    ``certain`` where it is found by its order and shape.
    """

    name: str
    working: Tensor
    master: Tensor
    certain: bool = True


def copies_of(optimizer: torch.optim.Optimizer, layout: Layout) -> list[Copy]:
    """As far as this rank holds both, in flat memory; none where the optimizer updates the model's own."""
    copies = list(_of_frameworks(layout))
    return copies or list(_in_order(optimizer, layout))


def _of_frameworks(layout: Layout) -> Iterator[Copy]:
    for name, param in zip(layout.names, layout.params, strict=True):
        fragments = getattr(param, "_hp_mapping", None)
        main = getattr(param, "main_param", None)
        if fragments is not None and not fragments.use_offload and _is_in_place(param, fragments):
            yield Copy(name, fragments.lp_fragment.reshape(-1), fragments.hp_fragment.reshape(-1))
        elif isinstance(main, Tensor) and main.numel() == param.numel() and _is_flat(param) and _is_flat(main):
            yield Copy(name, param.view(-1), main.view(-1))


def _is_in_place(param: Tensor, fragments: Any) -> bool:
    """True if DeepSpeed's map from a parameter to its copy follows the flat memory that is cut among ranks: with
    ``round_robin_gradients`` it leads to the copy of another one (0.19.8).
    """
    ranks = ranks_of(getattr(param, "_dp_group", None))
    shard_size = param.untyped_storage().nbytes() // param.element_size() // len(ranks)
    begins = ranks.index(own_rank()) * shard_size + fragments.hp_fragment_address.start
    return param.storage_offset() + fragments.lp_fragment_address.start == begins


def _in_order(optimizer: torch.optim.Optimizer, layout: Layout) -> Iterator[Copy]:
    """Float32 copies that a script makes by hand: as many parameters of the same shapes, none of them the model's."""
    copies = [param for group in optimizer.param_groups for param in group["params"]]
    if len(copies) != len(layout.params) or any(id(copy) in layout.index_of for copy in copies):
        return
    pairs = list(zip(layout.params, copies, strict=True))
    shapes_match = all(param.shape == copy.shape and _is_finer(copy, param) for param, copy in pairs)
    if shapes_match and all(_is_flat(param) and _is_flat(copy) for param, copy in pairs):
        for name, (param, copy) in zip(layout.names, pairs, strict=True):
            yield Copy(name, param.view(-1), copy.view(-1), certain=False)


def _is_flat(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_contiguous() and tensor.is_floating_point()


def _is_finer(copy: Tensor, param: Tensor) -> bool:
    return param.is_floating_point() and copy.is_floating_point() and copy.element_size() > param.element_size()
