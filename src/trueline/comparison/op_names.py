"""Classes of recorded calls, by the names of their functions."""

from __future__ import annotations

import functools
from typing import Literal

OpClass = Literal[
    "exact",
    "rounded",
    "activation",
    "matmul",
    "matvec",
    "sum",
    "normalization",
    "softmax",
    "attention",
    "loss",
    "scatter",
    "unknown",
]

_RANDOM = (
    "dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d bernoulli multinomial rand randn "
    "randint randperm rand_like randn_like randint_like normal uniform poisson exponential rrelu gumbel_softmax"
)
RANDOM = frozenset(_RANDOM.split())
"""Functions of torch that draw random numbers."""

_LINEAR = (
    "view view_as reshape transpose permute t T flatten unflatten squeeze unsqueeze expand expand_as repeat tile "
    "movedim moveaxis swapaxes swapdims rot90 chunk split unbind select narrow cat stack concat clone contiguous "
    "roll flip pad getitem index_select gather take where masked_fill triu tril to float half bfloat16 double type "
    "add radd sub rsub neg sum mean"
)
LINEAR = frozenset(_LINEAR.split())
"""Functions whose backward takes only its gradient and indices, and no numbers of the forward pass."""

_NAMES: dict[OpClass, str] = {
    "exact": "getitem view view_as reshape transpose permute t T flatten unflatten squeeze unsqueeze expand expand_as "
    "repeat repeat_interleave tile movedim moveaxis swapaxes swapdims rot90 "
    "chunk split unbind select narrow cat stack concat embedding relu relu6 hardtanh leaky_relu clamp max min "
    "amax amin maximum minimum argmax argmin topk sort gather index_select take clone contiguous detach abs neg sign "
    "where masked_fill zeros_like ones_like copy triu tril roll flip pad max_pool1d max_pool2d max_pool3d "
    "histc bincount one_hot searchsorted bucketize",
    "rounded": "add radd sub rsub mul rmul div rdiv truediv rtruediv sqrt to float half bfloat16 double type dropout "
    "square",
    "activation": "gelu silu tanh sigmoid exp expm1 log log1p log2 softplus sin cos erf pow rsqrt reciprocal mish elu "
    "selu celu logsigmoid hardswish hardsigmoid lerp addcmul addcdiv glu",
    "matmul": "linear matmul rmatmul mm bmm addmm baddbmm einsum bilinear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d",
    "matvec": "mv dot vdot inner addmv",
    "sum": "sum mean nansum nanmean",
    "softmax": "softmax log_softmax",
    "normalization": "layer_norm rms_norm group_norm batch_norm instance_norm normalize",
    "attention": "scaled_dot_product_attention",
    "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div",
    "scatter": "index_add scatter_add index_reduce scatter_reduce embedding_bag",
}
"""Last parts of the names of torch functions and methods, without underscores at their ends."""

_CLASS_BY_NAME: dict[str, OpClass] = {name: op_class for op_class, names in _NAMES.items() for name in names.split()}

_PREFIXED = {f"{side}{name}": name for side in "ir" for name in ("add", "sub", "mul", "truediv", "pow", "matmul")}
_ALIASES = {"rdiv": "div", "multiply": "mul", "divide": "div", "subtract": "sub", "concatenate": "cat"}

_MODULES = {
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "LogSoftmax": "log_softmax",
    "CrossEntropyLoss": "cross_entropy",
    "MSELoss": "mse_loss",
    "MultiheadAttention": "scaled_dot_product_attention",
}


@functools.cache
def op_class_of(api: str, *, rows: int | None = None) -> OpClass:
    """Class of a recorded call, by the last part of its ``api`` ('torch.nn.functional.linear').

    ``rows`` is the smaller of the two outer sizes of a product: with 1 it is a matrix times a vector, which kernels add
    up in another order. Functions that are not listed, and modules, are 'unknown'.
    """
    name = api.rpartition(".")[2].strip("_")
    listed = _CLASS_BY_NAME.get(name, "unknown")
    return "matvec" if listed == "matmul" and rows == 1 else listed


@functools.cache
def function_of(api: str) -> str:
    """Plain name of a function: 'add' for 'torch.Tensor.__iadd__', 'layer_norm' for 'torch.nn.LayerNorm'."""
    name = api.rsplit(".", 1)[-1]
    if ".nn.modules." in api and name[:1].isupper():
        name = _MODULES.get(name) or name.lower()
    name = name.removeprefix("_foreach_").strip("_")
    return _PREFIXED.get(name) or _ALIASES.get(name) or name
