"""A second tensor over the same memory."""

from __future__ import annotations

import pytest
import torch

from trueline.tensor.memory import alias

VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[1::2, ::3],
    "expanded": lambda x: x[:1].expand(5, 6),
    "scalar": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_an_alias_has_the_values_and_leaves_the_storage_as_it_was(view, dtype):
    x = VIEWS[view](torch.arange(24).reshape(4, 6).to(dtype))
    second = alias(x)
    assert torch.equal(second, x)
    assert second.shape == x.shape
    if dtype != torch.bfloat16:
        second.numpy()
    assert x.untyped_storage().resizable() or x.numel() == 0


def test_an_alias_of_a_lazy_view_has_what_it_stands_for():
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(alias(x.conj()), torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(alias(x.conj().imag), torch.tensor([-2.0, 4.0]))
