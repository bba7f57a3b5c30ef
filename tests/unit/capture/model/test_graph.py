"""A graph asked without the engine: the same gradients, and nobody's hook hears of it."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn import functional

from trueline.capture.model.graph import can_be_asked, gradients_of


def broadcast(x):
    return (x[:, None] * torch.arange(3.0)[None, :, None] + x.mean(0)).sum((1, 2))


def attention(x):
    return functional.scaled_dot_product_attention(x[None], x[None].tanh(), x[None] ** 2)[0]


def in_place(x):
    y = x.clone()
    y[:, 1:3].mul_(y[:, :2].exp())
    return y.cumsum(1)


def several(x):
    first, second = torch.chunk(x.sort(1).values, 2, dim=1)
    return first.double() @ second.double().T


def recurrent(x):
    torch.manual_seed(1)
    return nn.LSTM(6, 4, num_layers=2)(x)[0]


def differentiated(x):
    (g,) = torch.autograd.grad(x.sin().pow(3).sum(), x, create_graph=True)
    return g * x


@pytest.mark.parametrize("made", [broadcast, attention, in_place, several, recurrent, differentiated])
def test_nodes_called_one_by_one_give_what_the_engine_gives(made):
    torch.manual_seed(0)
    leaf = torch.randn(4, 6, requires_grad=True)
    x = leaf * 1.5
    y = made(x)
    outputs, inputs = [y, x.square()], [x, leaf, torch.ones(1, requires_grad=True) * 2]
    weights = [torch.randn_like(each) for each in outputs]
    assert can_be_asked(outputs)
    before = torch.autograd.grad(outputs, inputs, weights, retain_graph=True, allow_unused=True)
    asked = gradients_of(outputs, inputs, weights)
    assert asked[2] is before[2] is None
    for one, other in zip(asked[:2], before[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)  # float32, sums in another order
        assert one.grad_fn is None
    after = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    assert all(torch.equal(*pair) for pair in zip(before[:2], after[:2], strict=True))


def test_no_hook_of_any_kind_is_called_and_no_gradient_is_filled():
    heard = Counter()
    leaf = torch.randn(4, 6, requires_grad=True)
    leaf.register_hook(lambda g: heard.update(leaf=1))
    leaf.register_post_accumulate_grad_hook(lambda p: heard.update(accumulated=1))
    x = leaf * 2
    x.retain_grad()
    x.register_hook(lambda g: heard.update(tensor=1))
    y = x.exp()
    y.grad_fn.register_hook(lambda into, out: heard.update(node=1))
    y.grad_fn.register_prehook(lambda out: heard.update(before=1))
    register_multi_grad_hook((x, y), lambda g: heard.update(all=1))
    register_multi_grad_hook((x, y), lambda g: heard.update(any=1), mode="any")
    assert can_be_asked([y])
    gradients_of([y], [x, leaf], [torch.ones_like(y)])
    assert (heard, x.grad, leaf.grad) == (Counter(), None, None)
    y.sum().backward()
    assert set(heard) == {"leaf", "accumulated", "tensor", "node", "before", "all", "any"}


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError


class Wrapped(torch.Tensor):
    pass


def own_backward(x):
    return OwnBackward.apply(x)


def freed(x):
    weight = torch.randn(6, 6)
    y = x @ weight
    weight.untyped_storage().resize_(0)
    return y


def changed(x):
    weight = torch.randn(6, 6)
    y = x @ weight
    weight.zero_()
    return y


def packed(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        return x.exp()


def wrapped(x):
    return x * torch.randn(4, 6).as_subclass(Wrapped)


@pytest.mark.parametrize("made", [own_backward, freed, changed, packed, wrapped])
def test_what_could_notice_or_break_is_not_asked(made):
    y = made(torch.randn(4, 6, requires_grad=True) * 2)
    assert not can_be_asked([y.sin()])
