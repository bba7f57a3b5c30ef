"""``seed_all``: every random stream of this process from one number, and what that cannot reach."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from trueline.capture.dropout import NOT_SEEN, switch_dropout
from trueline.capture.model.world import launched_rank, world_size
from trueline.schema.errors import InputError

MAX_SEED = 2**32 - 1
"""NumPy's global stream takes no larger one."""

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACE_VALUE = ":4096:8"
"""One of the two values with which cuBLAS repeats its results (PyTorch, Reproducibility)."""

NPU_VARIABLES = {"HCCL_DETERMINISTIC": "true", "LCCL_DETERMINISTIC": "1", "CLOSE_MATMUL_K_SHIFT": "1"}
"""What makes Ascend's collectives and products repeat themselves (its documents; not tried on such a device)."""


@dataclass(frozen=True)
class SeedReport:
    """What ``seed_all`` set in this process, and what may differ between two runs all the same.

    ``seed`` is the one used here, ``rank`` the global rank; ``streams`` were seeded; ``settings`` are switches and
    environment variables by name, with the values that they now have. ``print`` it.
    """

    seed: int
    rank: int
    streams: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    not_covered: tuple[str, ...] = ()

    def loader_generator(self) -> torch.Generator:
        """A new stream for ``DataLoader(generator=…)``, the same at every call, that nothing else draws from.

        Without it a DataLoader draws order and worker seeds from torch's stream, so that a model that draws more or
        fewer numbers, as with dropout turned off, also gets other batches. Seeded with ``seed``.
        """
        return torch.Generator().manual_seed(self.seed)

    def __str__(self) -> str:
        lines = [f"Seed {self.seed} on rank {self.rank}: {', '.join(self.streams)}."]
        lines += [f"Set: {name} = {value}" for name, value in self.settings.items()]
        lines += [f"Not covered: {sentence}" for sentence in self.not_covered]
        return "\n".join(lines)


def seed_all(
    seed: int,
    *,
    deterministic: bool | Literal["warn"] = False,
    dropout: bool | None = None,
    per_rank: bool = False,
) -> SeedReport:
    """See ``trueline.seed_all``."""
    _require(seed, deterministic, dropout)
    rank = launched_rank()
    rank_seed = (seed + rank) % (MAX_SEED + 1) if per_rank else seed
    unseen = list(_hash_order(seed))
    random.seed(rank_seed)
    np.random.seed(rank_seed)
    torch.manual_seed(
        rank_seed
    )  # of the CPU and of every device; those that are not yet in use are seeded when they are
    settings = {"PYTHONHASHSEED": str(seed)}
    if deterministic:
        settings |= _make_deterministic(deterministic, unseen)
    else:
        unseen.append(
            "operations with an order of their own on a GPU, such as sums by atomic additions; pass deterministic=True."
        )
    if dropout is not None:
        switch_dropout(is_on=dropout)
        settings["dropout"] = "as the model has it" if dropout else "off: every call of torch gets probability 0"
        if not dropout:
            unseen.append(f"dropout {NOT_SEEN}.")
    unseen += _always()
    return SeedReport(rank_seed, rank, ("random", "numpy.random", *_torch_streams()), settings, tuple(unseen))


def _require(seed: object, deterministic: object, dropout: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"The seed is {seed!r}, expected a whole number from 0 to {MAX_SEED}. Pass one of these.")
    if not (isinstance(deterministic, bool) or deterministic == "warn"):
        raise InputError(f"deterministic is {deterministic!r}. Pass True, False or 'warn'.")
    if not (dropout is None or isinstance(dropout, bool)):
        raise InputError(
            f"dropout is {dropout!r}. Pass False to turn it off, True to turn it on again, or leave it out."
        )


def _torch_streams() -> Iterator[str]:
    """Names of the streams that ``torch.manual_seed`` reaches here."""
    yield "torch"
    kind = _accelerator()
    if kind is not None:
        yield f"torch.{kind} ({getattr(torch, kind).device_count()} devices)"
    yield "the workers of every DataLoader"


def _accelerator() -> str | None:
    for kind in ("cuda", "npu", "xpu", "mps"):
        module: Any = getattr(torch, kind, None)
        if module is not None and hasattr(module, "is_available") and module.is_available():
            return kind
    return None


def _hash_order(seed: int) -> Iterator[str]:
    """Set the variable for processes to come; this one's hashing was decided when it was started."""
    started = _environ_at_start().get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(seed)
    if sys.flags.hash_randomization and started in (None, "", "random"):
        yield (
            "the order of sets of strings in this process, which was started without PYTHONHASHSEED; start it with "
            f"PYTHONHASHSEED={seed}."
        )


def _environ_at_start() -> dict[str, str]:
    """The environment this process was started with, where the system still knows it."""
    source = Path("/proc/self/environ")
    if not source.exists():
        return dict(os.environ)
    entries = source.read_text(errors="replace").split("\0")
    return {name: value for name, is_one, value in (entry.partition("=") for entry in entries) if is_one}


def _make_deterministic(deterministic: bool | Literal["warn"], unseen: list[str]) -> dict[str, str]:
    """Turn the switches, add to ``unseen`` what they do not reach, and return what they are now."""
    warn = deterministic == "warn"
    torch.use_deterministic_algorithms(True, warn_only=warn)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    late = WORKSPACE not in os.environ and torch.cuda.is_initialized()
    settings = {
        "torch.use_deterministic_algorithms": "True, with warnings where there is none" if warn else "True",
        "torch.backends.cudnn.deterministic": "True",
        "torch.backends.cudnn.benchmark": "False",
        WORKSPACE: os.environ.setdefault(WORKSPACE, WORKSPACE_VALUE),
    }
    if late:
        unseen.append(
            f"products by cuBLAS: the GPU was in use before {WORKSPACE} was set; call seed_all first, or start with "
            f"{WORKSPACE}={WORKSPACE_VALUE}."
        )
    if _accelerator() == "npu":
        settings |= {name: os.environ.setdefault(name, value) for name, value in NPU_VARIABLES.items()}
    unseen.append(
        "operations without a deterministic form, which warn and go on."
        if warn
        else "kernels of other libraries: torch's own operations without a deterministic form raise RuntimeError."
    )
    return settings


def _always() -> Iterator[str]:
    """What no seed reaches."""
    yield "streams made without a seed, such as numpy.random.default_rng(), and random.SystemRandom."
    yield (
        f"another number of threads (here {torch.get_num_threads()}), another torch or another device: sums are added "
        "in another order."
    )
    if _accelerator() is not None and world_size() > 1:
        yield "the order in which a collective adds, where its library chooses another algorithm or other ranks."
