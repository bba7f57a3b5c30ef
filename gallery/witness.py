"""What a rank itself knows after an entry has run, without Trueline: proof that a planted fault is real."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Witness:
    """One rank's own account. Digests are hex text of the bytes; ``samples`` has one list a step."""

    rank: int
    params: dict[str, str]
    buffers: dict[str, str]
    finite_params: bool
    losses: list[float]
    samples: list[list[str]] = field(default_factory=list)


def testify(rank: int, model: nn.Module, losses: list[float], samples: list[list[str]]) -> Witness:
    """The Witness of ``rank``; sharded parameters are gathered, so every rank must call it."""
    params = {name: whole(param.detach()) for name, param in model.named_parameters()}
    return Witness(
        rank=rank,
        params={name: digest(value) for name, value in params.items()},
        buffers={name: digest(value) for name, value in model.named_buffers()},
        finite_params=all(bool(value.isfinite().all()) for value in params.values()),
        losses=losses,
        samples=samples,
    )


def whole(value: Tensor) -> Tensor:
    """``value``, gathered over its shards if it is a DTensor."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def digest(value: Tensor) -> str:
    """Hex digest of the bytes, dtype and shape of ``value``."""
    content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content + str((value.dtype, tuple(value.shape))).encode(), digest_size=8).hexdigest()


def replicas_differ(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """The ranks ended with different parameters."""
    del healthy
    return any(witness.params != faulty[0].params for witness in faulty)


def buffers_differ(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """The ranks ended with different buffers."""
    del healthy
    return any(witness.buffers != faulty[0].buffers for witness in faulty)


def trains_differently(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """The parameters ended elsewhere than the twin's."""
    return any(bad.params != good.params for bad, good in zip(faulty, healthy, strict=True))


def keeps_differently(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """The buffers ended elsewhere than the twin's."""
    return any(bad.buffers != good.buffers for bad, good in zip(faulty, healthy, strict=True))


def config_differs(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """The parameters ended elsewhere than the twin's, or differ between ranks."""
    return trains_differently(faulty, healthy) or replicas_differ(faulty, healthy)


def same_batches(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """Two ranks read the same samples at every step."""
    del healthy
    return any(a.samples == b.samples for a in faulty for b in faulty if a.rank < b.rank)


def same_batches_from(step: int) -> Callable[[Sequence[Witness], Sequence[Witness]], bool]:
    """Two ranks read the same samples at ``step`` and every later one, and not before."""

    def shows(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
        del healthy
        first, second = faulty[0].samples, faulty[1].samples
        return first[step:] == second[step:] and first[:step] != second[:step]

    return shows


def shared_samples(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """More samples were read by two ranks than in the twin."""
    return _shared(faulty) > _shared(healthy)


def shared_samples_from(step: int) -> Callable[[Sequence[Witness], Sequence[Witness]], bool]:
    """The same, of what was read at ``step`` and later."""

    def shows(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
        return _shared(faulty, step) > _shared(healthy, step)

    return shows


def samples_differ(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """Some rank read other samples than in the twin."""
    return any(bad.samples != good.samples for bad, good in zip(faulty, healthy, strict=True))


def fewer_samples(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """Fewer distinct samples were read than in the twin, in as many steps."""
    return len(_read(faulty)) < len(_read(healthy))


def nonfinite(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """A loss or a final parameter is NaN or infinite."""
    del healthy
    return any(not witness.finite_params or not all(map(math.isfinite, witness.losses)) for witness in faulty)


def silent_loss(faulty: Sequence[Witness], healthy: Sequence[Witness]) -> bool:
    """A rank had a loss of exactly zero."""
    del healthy
    return any(loss == 0.0 for witness in faulty for loss in witness.losses)


def _read(witnesses: Sequence[Witness], first: int = 0) -> set[str]:
    return {sample for witness in witnesses for step in witness.samples[first:] for sample in step}


def _shared(witnesses: Sequence[Witness], first: int = 0) -> int:
    read = [_read([witness], first) for witness in witnesses]
    return sum(len(a & b) for index, a in enumerate(read) for b in read[index + 1 :])
