"""Parameters of a team when watching begins: of models alike but for some parameters, or of parts of one model."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from trueline.capture.model.layout import UnlikeParams, local, named_parameters
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


ParamsByName = Mapping[str, Param]
"""Parameters of one rank by FQN."""


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
    """Returns those of ``ranks`` that hold the part of one model that this one holds, itself included: workers that can
    be compared. All of ``ranks`` must call it, and one that never does is waited for a while.

    The same part are the same names and pieces. Stages of a pipeline may have those, too: where the ranks that have
    them begin with several sets of weights, each on as many ranks, these are parts of their own. One rank that begins
    with weights of its own, as where a seed differs, is no such part.
    """
    message = _digest_of(_pieces(model)) + _digest_of([(name, param.digest) for name, param in holdings(model).items()])
    meeting = meet(ranks, purpose="part", message=message, patience_s=patience_s)
    by_weights: defaultdict[bytes, list[int]] = defaultdict(list)
    for rank in sorted(meeting.messages):
        pieces, weights = meeting.messages[rank][:32], meeting.messages[rank][32:]
        if pieces == message[:32]:
            by_weights[weights].append(rank)
    if len({len(ranks_alike) for ranks_alike in by_weights.values()}) == 1:
        return tuple(by_weights[message[32:]])
    return tuple(sorted(rank for ranks_alike in by_weights.values() for rank in ranks_alike))


def _pieces(model: nn.Module) -> list[object]:
    """Name, local shape, whether it trains, and this rank's piece along each axis on which it is cut, of each
    parameter.
    """
    return [
        (name, tuple(local(param).shape), param.requires_grad, _piece(param)) for name, param in named_parameters(model)
    ]


def _piece(param: Tensor) -> list[int]:
    if not is_dtensor(param):
        return []
    coordinates = param.device_mesh.get_coordinate() or []
    return [
        index for index, placement in zip(coordinates, param.placements, strict=False) if not placement.is_replicate()
    ]


def _digest_of(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()


def unlike_params(params_of: Mapping[int, ParamsByName], *, replicas: bool) -> UnlikeParams | None:
    """Parameters that the ranks do not hold alike; None where they hold parts of one model, or nothing that all train.
    ``params_of`` is by rank; ``replicas`` says that the framework has seen to it that each holds the whole model.
    """
    per_rank = list(params_of.values())
    names = {name for params in per_rank for name in params}
    shared = {
        name for name in names if len({params[name].shape if name in params else None for params in per_rank}) == 1
    }
    unlike = UnlikeParams(
        shape=frozenset(names - shared),
        frozen=frozenset(name for name in shared if len({params[name].trains for params in per_rank}) > 1),
    )
    if not any(per_rank[0][name].trains for name in shared - unlike.frozen):
        return None
    if not unlike.shape or replicas:
        return unlike
    return unlike if len(shared) >= SHARED * len(names) and _are_replicas(per_rank, shared) else None


def _are_replicas(per_rank: list[ParamsByName], shared: Iterable[str]) -> bool:
    """True if what ranks share says that they are copies: those that hold the same list of parameters hold the same
    values, or, where no two do, all ranks hold the same in what they share. Of two, one must lack what the other has.
    """
    lists = [frozenset((name, param.shape) for name, param in params.items()) for params in per_rank]
    common, count = Counter(lists).most_common(1)[0]
    if len(per_rank) == 2 and not (lists[0] <= lists[1] or lists[1] <= lists[0]):
        return False
    alike = (
        [params for params, param_list in zip(per_rank, lists, strict=True) if param_list == common]
        if count > 1
        else per_rank
    )
    named_values = [name for name in shared if any(params[name].digest is not None for params in alike)]
    equal = [name for name in named_values if len({params[name].digest for params in alike}) == 1]
    return len(equal) >= SHARED * len(named_values)


def _digest(x: Tensor) -> int | None:
    if not x.numel() or bool((x == x.reshape(-1)[0]).all()):
        return None
    return int(digest_tensor(x))
