"""What the ranks of a team hold when watching begins: each its model, the same but for some parameters, or parts of
one.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from trueline.capture.model.layout import Apart, local, named_parameters
from trueline.capture.model.mesh import is_dtensor
from trueline.capture.model.world import meet
from trueline.tensor.digest import digest_tensor

SHARED = 0.5
"""Fraction of all parameters of a team that must have the same name and shape on all ranks, and of those the fraction
that must be equal to the bit, for ranks to be replicas of which one differs and not stages of a pipeline. Stages that
number their layers from 0 share names; initial weights they do not.
"""


@dataclass(frozen=True)
class Param:
    """A parameter as one rank holds it. ``digest`` is of its bits, None where all its elements are alike, as in a new
    bias: that is the same in any model.
    """

    shape: tuple[int, ...]
    trains: bool
    digest: int | None


Held = Mapping[str, Param]
"""By name."""


def outline(model: nn.Module) -> list[tuple[str, tuple[int, ...], bool]]:
    """Names, shapes and whether they train of all parameters, in order: equal on all ranks unless something is wrong,
    or they hold parts of one model. (Another dtype alone is a fault of one rank's settings.)
    """
    return [(name, tuple(param.shape), param.requires_grad) for name, param in named_parameters(model)]


def holdings(model: nn.Module) -> dict[str, Param]:
    """All parameters of ``model`` on this rank. Reads all of them once."""
    return {
        name: Param(tuple(param.shape), param.requires_grad, _digest(local(param).detach()))
        for name, param in named_parameters(model)
    }


def holders(model: nn.Module, ranks: Sequence[int], *, patience_s: float) -> tuple[int, ...]:
    """Those of ``ranks`` that hold the same part of one model as this one, itself included: workers that can be
    compared. All of ``ranks`` must call it, and one that never does is waited for a while.

    The same part are the same names and pieces. Stages of a pipeline may have those, too: where the ranks that have
    them begin with several sets of weights, each on as many ranks, these are parts of their own. One rank that begins
    with weights of its own, as where a seed differs, is no such part.
    """
    message = _digest_of(_places(model)) + _digest_of([(name, one.digest) for name, one in holdings(model).items()])
    met = meet(ranks, purpose="part", message=message, patience_s=patience_s)
    by_weights: defaultdict[bytes, list[int]] = defaultdict(list)
    for rank in sorted(met.messages):
        place, weights = met.messages[rank][:32], met.messages[rank][32:]
        if place == message[:32]:
            by_weights[weights].append(rank)
    if len({len(each) for each in by_weights.values()}) == 1:
        return tuple(by_weights[message[32:]])
    return tuple(sorted(rank for each in by_weights.values() for rank in each))


def _places(model: nn.Module) -> list[object]:
    """Of each parameter its name, own shape, whether it trains, and which piece this rank has along each axis on which
    it is cut.
    """
    return [
        (name, tuple(local(param).shape), param.requires_grad, _piece(param)) for name, param in named_parameters(model)
    ]


def _piece(param: Tensor) -> list[int]:
    if not is_dtensor(param):
        return []
    at = param.device_mesh.get_coordinate() or []
    return [here for here, placement in zip(at, param.placements, strict=False) if not placement.is_replicate()]


def _digest_of(said: object) -> bytes:
    return hashlib.sha256(repr(said).encode()).digest()


def apart(held: Mapping[int, Held], *, replicas: bool) -> Apart | None:
    """What the ranks do not hold alike; None where they hold parts of one model, or nothing that all train.
    ``replicas`` says that the framework has seen to it that they hold one model each.
    """
    every = list(held.values())
    names = {name for one in every for name in one}
    shared = {name for name in names if len({one[name].shape if name in one else None for one in every}) == 1}
    found = Apart(
        shape=frozenset(names - shared),
        frozen=frozenset(name for name in shared if len({one[name].trains for one in every}) > 1),
    )
    if not any(every[0][name].trains for name in shared - found.frozen):
        return None
    if not found.shape or replicas:
        return found
    return found if len(shared) >= SHARED * len(names) and _are_replicas(every, shared) else None


def _are_replicas(every: list[Held], shared: Iterable[str]) -> bool:
    """Whether what ranks share says that they are copies: those that hold the same list of parameters hold the same
    values, or, where no two do, all ranks hold the same in what they share. Of two, one must lack what the other has.
    """
    lists = [frozenset((name, param.shape) for name, param in one.items()) for one in every]
    common, count = Counter(lists).most_common(1)[0]
    if len(every) == 2 and not (lists[0] <= lists[1] or lists[1] <= lists[0]):
        return False
    alike = [one for one, held in zip(every, lists, strict=True) if held == common] if count > 1 else every
    telling = [name for name in shared if any(one[name].digest is not None for one in alike)]
    equal = [name for name in telling if len({one[name].digest for one in alike}) == 1]
    return len(equal) >= SHARED * len(telling)


def _digest(x: Tensor) -> int | None:
    if not x.numel() or bool((x == x.reshape(-1)[0]).all()):
        return None
    return int(digest_tensor(x))
