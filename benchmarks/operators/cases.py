"""What is called: torch's own table of operators with small inputs, and sums over many rows; numbers of four kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.operators.many_rows import IDS, called
from torch import Tensor
from torch.utils import _pytree as pytree

KINDS = ("random", "one sign", "repeating", "cancelling")
"""Of numbers: normal; as positive ones; with all rows like the first; with rows that are each other's opposite but
for a hundredth."""


@dataclass(frozen=True)
class Case:
    """An operator to call, and what with."""

    name: str
    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def with_kind(x: Tensor, kind: str) -> Tensor:
    """``x`` with numbers of a kind."""
    if kind == "random" or not x.is_floating_point() or not x.numel() or x.layout is not torch.strided:
        return x
    x = x.detach().contiguous()
    if kind == "one sign":
        return x.abs()
    if not x.dim():
        return x
    if kind == "repeating":
        return x[:1].expand_as(x).clone()
    signs = torch.tensor([1.0, -1.0], device=x.device).repeat(len(x) // 2 + 1)[: len(x)]
    return (signs.view(-1, *[1] * (x.dim() - 1)) * x[:1].float() + 0.01 * x.float()).to(x.dtype)


def small(device: str, num_samples: int = 6) -> Iterator[Case]:
    """The operators of torch's own table, each with its first samples, which have at most some dozens of rows."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if torch.bfloat16 not in op.supported_dtypes(device):
            continue
        name = f"{op.name} ({op.variant_test_name})" if op.variant_test_name else op.name
        for kind in KINDS:
            torch.manual_seed(0)
            try:
                samples = list(
                    itertools.islice(op.sample_inputs(device, torch.bfloat16, requires_grad=False), num_samples)
                )
            except Exception:  # whatever a sample of the table raises where a library lacks
                continue
            for sample in samples:
                args, kwargs = pytree.tree_map_only(
                    Tensor, lambda x, kind=kind: with_kind(x, kind), ((sample.input, *sample.args), sample.kwargs)
                )
                yield Case(name, kind, op.op, args, kwargs)


def many(num_rows: int, device: str) -> Iterator[Case]:
    """Sums over many rows, as functions of rows [N, 8], and what they are added up by."""
    for kind in KINDS:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int, kind: str = kind, generator: torch.Generator = generator) -> Tensor:
            return with_kind(torch.randn(*shape, generator=generator).bfloat16(), kind).to(device)

        def weight(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, generator=generator).bfloat16().to(device)

        ids = torch.randint(0, IDS, (num_rows,), generator=generator)
        ids[::2] = 3
        ids = ids.to(device)
        for name, function, args in called(num_rows, ids, drawn, weight):
            yield Case(name, kind, function, args, {})
