"""Statistics and fingerprint of a tensor that is not in host memory, without synchronising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from trueline.schema.safe_logger import SafeLogger
from trueline.tensor.fingerprint import fingerprint_on_device
from trueline.tensor.measure import measure_on_device
from trueline.tensor.shard import ShardRuns
from trueline.tensor.weights import device_weights

_log = SafeLogger(__name__)


def stats_and_fingerprint(
    x: Tensor, *, fingerprint: bool, whole: Mapping[str, Sequence[int]]
) -> tuple[Tensor, Tensor | None]:
    """float64 [S] statistics of ``x`` (``measure_on_device``), and int64 [] fingerprint if asked for.

    ``whole`` holds the arguments of ``fingerprint_on_device`` that say where in the whole ``x`` is. Contiguous floats
    on a CUDA device, that are one run of the whole, are read once, by ``triton_pass``, where Triton is installed and
    works; all else by torch.
    """
    shard = ShardRuns(x, **whole) if whole else None
    one_pass = _triton(x.device) if x.is_cuda and (shard is None or shard.num_runs == 1) else None
    if one_pass is None or x.dtype not in one_pass.DTYPES or x.numel() == 0 or not x.is_contiguous() or x.is_neg():
        return measure_on_device(x, shard), fingerprint_on_device(x, **whole) if fingerprint else None
    with torch.cuda.device_of(x):
        stats, print_ = one_pass.measured(x, shard.first if shard is not None else 0, device_weights(x.device))
    return stats, print_ if fingerprint else None


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """The kernels, compiled once for one dtype; None where Triton is not there, or cannot compile for this device."""
    try:
        from trueline.tensor import triton_pass

        with torch.cuda.device(device):
            triton_pass.measured(torch.zeros(1, device=device), 0, device_weights(device))
    except ImportError:
        return None
    except Exception as error:  # whatever a compiler raises: torch measures the same
        _log.warning("Triton does not compile on %s, so torch measures tensors, in more passes: %r", device, error)
        return None
    return triton_pass
