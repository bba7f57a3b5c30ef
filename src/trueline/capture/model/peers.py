"""What the ranks of a team hold when watching begins: each its model, the same but for some parameters, or parts of
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from trueline.capture.model.layout import Apart, local, named_parameters
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
