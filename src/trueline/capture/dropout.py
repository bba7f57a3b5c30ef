"""Dropout off for everything that a thread calls, and on again, without touching a model or a function of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

OP_NAMES = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
RNN_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_WHERE: dict[Any, tuple[str, int]] = {
    **{
        getattr(functional, name): ("p", 1)
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    },
    **{
        getattr(where, name + ending): ("p", 1)
        for where in (torch, torch.ops.aten)
        for name in OP_NAMES
        for ending in ("", "_")
    },
    torch.native_dropout: ("p", 1),
    torch.ops.aten.native_dropout: ("p", 1),
    functional.scaled_dot_product_attention: ("dropout_p", 4),
    torch.ops.aten.scaled_dot_product_attention: ("dropout_p", 4),
    functional.multi_head_attention_forward: ("dropout_p", 10),
}
"""Name and position of the argument that is the probability, of every function of torch that drops values."""

NOT_SEEN = "in other threads, inside TorchScript, and in kernels that are not torch's own"

_RNNS = frozenset(getattr(torch, name) for name in RNN_NAMES)


class NoDropout(TorchFunctionMode):
    """While entered, every call of torch that drops values does so with probability 0: it returns its input.

    Such a call draws no random numbers, so that what follows it draws others than it did with dropout. Calls are seen
    however they were imported, in modules and out of them, in the recomputation of checkpoints, and in what
    `torch.compile` traces; ``NOT_SEEN`` has those that are not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.active:
            function = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
            if function in _WHERE:
                args, kwargs = _without(*_WHERE[function], args, kwargs)
            elif func in _RNNS:
                args = _rnn_without(args)
        return func(*args, **kwargs)


def switch_dropout(*, is_on: bool) -> None:
    """Turn dropout off for this thread, or on again where it was turned off here before."""
    stack = torch.overrides._get_current_function_mode_stack()
    modes = [mode for mode in stack if isinstance(mode, NoDropout)]
    for mode in modes:
        mode.active = not is_on
    if is_on and modes and modes[-1] is stack[-1]:
        modes[-1].__exit__(None, None, None)  # only the last one in can be taken out
    if not is_on and not modes:
        NoDropout().__enter__()  # stays on torch's own stack of modes: there is no end to leave it at


def _without(
    name: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) > index:
        return (*args[:index], 0.0, *args[index + 1 :]), kwargs
    return args, {**kwargs, name: 0.0}


def _rnn_without(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with dropout 0: (input, states, weights, biased, layers, dropout, …), or packed (input, batch sizes,
    states, …).
    """
    index = 5 if len(args) > 3 and isinstance(args[3], bool) else 6
    return (*args[:index], 0.0, *args[index + 1 :]) if len(args) > index else args


def dropping_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module, float]]:
    """Name, module and probability of each part that drops values in training mode, as far as its class or its numbers
    are called so (``dropout``, ``drop_prob``, ``layerdrop``).
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase) and part.num_layers == 1:
            continue
        kind = type(part).__name__.lower()
        short_names = ("p", "prob") if "drop" in kind or kind == "stochasticdepth" else ()
        numbers = (value for key, value in vars(part).items() if "drop" in key.lower() or key in short_names)
        p = max((value for value in numbers if isinstance(value, float) and 0 < value <= 1), default=0.0)
        if p > 0:
            yield name, part, p
