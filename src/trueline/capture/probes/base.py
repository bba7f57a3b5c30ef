"""What a probe is: one thing that is measured, asked for at moments of a step. The recorder knows no more of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import nn

from trueline.capture.model.layout import Layout
from trueline.capture.step.passes import CountedPasses
from trueline.schema.plan import Plan

Moment = Literal["batch", "forward", "output", "update", "gradients", "updated", "closed"]
"""In the order in which they come, the first three once a training forward pass:

- ``batch``: ``args`` and ``kwargs`` are what it reads, or what the script has given by hand;
- ``forward``: it begins, with ``args`` and ``kwargs``, of ``module``, or of ``called``, the part of it where the script
  calls that alone;
- ``output``: it has returned ``output``;
- ``update``: ``optimizer`` is about to update; with a closure, gradients do not exist yet;
- ``gradients``: gradients are what the optimizer receives, unless ``gradients_known`` is False, and ``counted`` says
  which passes they come from; before the update, or with a closure after it;
- ``updated``: the update is done;
- ``closed``: watching ends, and parameters are as training left them. Probes that were not due are asked, too.
"""


@dataclass
class Step:
    """A step as probes may know it: what all ranks have decided of it, then what the moment brings. ``age`` is steps
    since the first that is watched.

    A probe sets ``measures`` where what it takes is to be summed over workers, and puts what holds for many steps into
    ``facts`` (fields of ``RankEnv``), which go on from step to step.
    """

    number: int
    layout: Layout
    plan: Plan
    facts: dict[str, Any]
    age: int = 0
    watched: bool = False
    sampled: bool = False
    keeps_sketch: bool = False
    digests: bool = False
    rechecks: bool = False
    measures: bool = False
    module: nn.Module | None = None
    called: nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None
    optimizer: torch.optim.Optimizer | None = None
    gradients_known: bool = True
    counted: CountedPasses = field(default_factory=CountedPasses)


class Probe(Protocol):
    """Measures one thing. ``name`` is what a Finding calls it when it fails: it is then not asked again, and the others
    are. Nothing in it may wait, or change what is trained.

    Most steps are not sampled, and what is asked in these is paid all the time: ``between`` are the ``moments`` at
    which it is asked there, None for a probe of sampled steps alone. That is not even begun in others, but for the
    first after one in which it was due, where it forgets.
    """

    name: str
    moments: Collection[Moment]

    @property
    def between(self) -> Collection[Moment] | None:
        """Of ``moments``, those of a step that is not sampled."""
        ...

    def begin(self, step: Step) -> bool:
        """Forget the step before; whether to be asked in this one. After a failure this is called once more, with a
        step that is not ``watched``.
        """
        ...

    def take(self, moment: Moment, step: Step) -> Mapping[str, Any]:
        """What is measured at one of its ``moments``: tensors by names of their own, which are copied to the host once
        a step, and columns of ``schema.workers`` that are known at once.
        """
        ...

    def columns(self, host: Mapping[str, torch.Tensor], step: Step, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns of ``schema.workers`` from the tensors that have arrived on the ``host``, which may be a step
        later; ``row`` is what is known of ``step`` so far.
        """
        ...


class FactProbe:
    """A Probe that is asked in every step for which it has a moment, and whose tensors, if any, are no columns."""

    def begin(self, step: Step) -> bool:
        """True: nothing is kept of a step."""
        return True

    def columns(self, host: Mapping[str, torch.Tensor], step: Step, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}
