"""Description of one rank: versions, flags, environment, and the names behind its rows."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import socket
import sys
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import nn

from trueline.capture.model.layout import Layout, copies, local, named_buffers
from trueline.capture.model.mesh import is_piece
from trueline.schema.files.run_manifest import HeldAlike, ParamLists, RankEnv

_PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "deepspeed",
    "torch_npu",
    "triton",
    "trueline",
)


def describe_rank(model: nn.Module, layout: Layout, *, world_size: int, job: str = "") -> RankEnv:
    """The part of the environment file that holds for the whole run."""
    return RankEnv(
        rank=layout.mesh.rank,
        world_size=world_size,
        hostname=socket.gethostname(),
        seed=torch.initial_seed(),
        pid=os.getpid(),
        job=job,
        device=str(layout.device),
        replica_key=layout.mesh.replica_key,
        alike=[HeldAlike(ranks=list(ranks), params=names) for ranks, names in copies(layout).items()],
        buffer_key="all",  # FSDP2 shards parameters and leaves buffers whole
        buffers=[name for name, _ in named_buffers(model)],
        **param_lists(layout).named(),
        grad_dtype=str(layout.params[0].dtype),
        versions=versions(),
        flags=flags(),
        environ=dict(os.environ),  # of which RankEnv keeps some
    )


def param_lists(layout: Layout, *, step: int = 0) -> ParamLists:
    """Names and shapes behind list columns from ``step`` on."""
    return ParamLists(
        step=step,
        params=list(layout.names),
        param_shapes=[list(local(param).shape) for param in layout.params],
        param_dtypes=[str(param.dtype) for param in layout.params],
        requires_grad=[param.requires_grad for param in layout.params],
        frozen=[name for name, _ in layout.frozen],
        whole=_whole(layout),
        groups=list(layout.groups),
        sketch_length=layout.k,
    )


def _whole(layout: Layout) -> list[str]:
    if layout.mesh.shards == 1:
        return []
    named_params = [*zip(layout.names, layout.params, strict=True), *layout.frozen]
    return [name for name, param in named_params if not is_piece(param)]


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide numbers."""
    version_of = {"python": platform.python_version(), "platform": platform.platform(), "torch": torch.__version__}
    for package in _PACKAGES:
        if package in sys.modules or package == "trueline":
            try:
                version_of[package] = _version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
    if torch.version.cuda is not None:
        version_of["cuda"] = str(torch.version.cuda)
    return version_of


# Reading one parses the whole description of its package: 10 ms.
_version = functools.cache(importlib.metadata.version)


def flags() -> dict[str, Any]:
    """The switches of torch that change numbers."""
    switches: dict[str, Any] = {
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "num_threads": torch.get_num_threads(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "mkldnn": torch.backends.mkldnn.enabled,  # type: ignore[attr-defined]
    }
    for name, owner, attribute in _SWITCHES:
        with contextlib.suppress(
            Exception
        ):  # of another version; or TF32 was set by the new names, and is asked by old
            value = getattr(owner, attribute)
            switches[name] = value() if callable(value) else value
    if torch.cuda.is_available():
        switches["gpu"] = torch.cuda.get_device_name()
    return switches


_MATMUL, _CUDA = torch.backends.cuda.matmul, torch.backends.cuda
_SWITCHES: tuple[tuple[str, Any, str], ...] = (
    ("matmul_tf32", _MATMUL, "allow_tf32"),
    ("cudnn_tf32", torch.backends.cudnn, "allow_tf32"),
    ("fp16_reduced_precision_reduction", _MATMUL, "allow_fp16_reduced_precision_reduction"),
    ("bf16_reduced_precision_reduction", _MATMUL, "allow_bf16_reduced_precision_reduction"),
    ("fp16_accumulation", _MATMUL, "allow_fp16_accumulation"),
    ("sdpa_flash", _CUDA, "flash_sdp_enabled"),
    ("sdpa_memory_efficient", _CUDA, "mem_efficient_sdp_enabled"),
    ("sdpa_math", _CUDA, "math_sdp_enabled"),
    ("sdpa_cudnn", _CUDA, "cudnn_sdp_enabled"),
)
"""Switches by the names of https://docs.pytorch.org/docs/stable/backends.html."""


def autocast_state() -> dict[str, Any]:
    """True if autocast is on where it is asked, and in which dtype, for the CPU and the accelerator."""
    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    return {kind: str(torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)}


_MIXED = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
"""What Accelerate calls the dtypes of autocast."""


def autocast_of(module: nn.Module | None) -> dict[str, Any]:
    """The autocast in which ``module`` is called, asked as it begins; or that which Accelerate has put into its
    ``forward``, which nobody outside sees.
    """
    state = autocast_state()
    accelerate: Any = sys.modules.get("accelerate.state")
    if state or accelerate is None or module is None:
        return state
    wrapped = module._modules.get("module")
    inner = module if wrapped is None else wrapped  # a compiled module has no truth: it asks for the length of its own
    if "_original_forward" not in {**vars(module), **vars(inner)}:
        return {}
    shared = getattr(getattr(accelerate, "AcceleratorState", None), "_shared_state", {})
    device = next((param.device.type for param in inner.parameters()), "cpu")
    dtype = _MIXED.get(shared.get("_mixed_precision"))
    return {} if dtype is None else {device: dtype}


def describe_optimizer(optimizer: torch.optim.Optimizer | None, param_ids: Container[int]) -> dict[str, Any]:
    """Class and hyper-parameters per group, for the environment file; ``param_ids`` are the ``id`` of the model's
    parameters.
    """
    if optimizer is None:
        return {}
    return {
        "class": type(optimizer).__name__,
        "groups": [
            {key: plain_value(value) for key, value in group.items() if key != "params"}
            | {"num_params": num_params(group, param_ids)}
            for group in optimizer.param_groups
        ],
    }


def num_params(group: Mapping[str, Any], param_ids: Container[int]) -> int | None:
    """Number of parameters of an optimizer's group; None where these are copies or parts of the model's own, of
    which each rank may have another number (ZeRO, Megatron's distributed optimizer).
    """
    return len(group["params"]) if any(id(param) in param_ids for param in group["params"]) else None


PLAIN = frozenset((bool, int, float, str, type(None)))
"""Types that JSON holds as they are: nearly all hyper-parameters, which are looked at in every step."""


def plain_value(value: Any) -> Any:
    """The value as JSON can hold it; a host scalar tensor as its number, any other object as its type's name."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.device.type == "cpu" and value.numel() == 1 else f"tensor on {value.device.type}"
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
