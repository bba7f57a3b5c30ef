"""Digests of the random streams of this process, read without drawing from them."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import xxhash

from trueline.capture.probes.base import FactProbe, Moment, Step


class StreamProbe(FactProbe):
    """The columns of ``rng_digests``, in steps before which replicas are digested."""

    name = "random streams"
    moments = ("update",)

    def begin(self, step: Step) -> bool:
        """Not in every step."""
        return step.digests

    def take(self, moment: Moment, step: Step) -> dict[str, int | None]:
        """The columns, just before the update."""
        return rng_digests(step.layout.device)


def rng_digests(device: torch.device) -> dict[str, int | None]:
    """uint64 digest of each stream's state, keyed by its workers column; None for a stream that does not exist here."""
    return {
        "rng_python": _hash(repr(random.getstate()).encode()),
        "rng_numpy": _numpy(),
        "rng_torch": _hash(torch.get_rng_state().numpy().tobytes()),
        "rng_device": _device(device),
    }


def _numpy() -> int | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, position, has_gauss, cached = numpy.random.get_state()
    return _hash(keys.tobytes() + repr((name, position, has_gauss, cached)).encode())


def _device(device: torch.device) -> int | None:
    module = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "get_rng_state"):
        return None
    return _hash(module.get_rng_state(device).numpy().tobytes())  # type: ignore[union-attr]


def _hash(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content)
