"""Exact cosines between all workers' gradients, by gathering them piece by piece: the slow truth that sketches stand
for.

It keeps a float32 copy of the gradient and moves it over the wire once per worker; measured at 1.78 times a step.
Only with ``Plan.exact``, and only between backward and the update, never inside a hook. It has a group of Trueline's
own, as sums and the user's collectives are under way meanwhile, and waits for nobody for long.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from trueline.capture.model.layout import Layout
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.step.exchange import PATIENCE_S, Team

PIECE = 1_048_576
"""Elements of the gradient that are gathered at a time (4 MiB of float32 a worker); the last piece is filled up, so
that no worker ever brings another length.
"""


class ExactCosineProbe(FactProbe):
    """The column ``exact_cosines``, of the copies that ``gradients`` has kept; where those are missing, of none: a rank
    always takes part.
    """

    name = "exact cosines"
    moments = ("gradients",)
    between = None

    def __init__(self, gradients: GradientProbe, team: Team) -> None:
        self._gradients = gradients
        self._team = team

    def begin(self, step: Step) -> bool:
        return step.keeps_sketch and step.plan.exact

    def take(self, moment: Moment, step: Step) -> dict[str, list[float]]:
        if self._team.side is None:
            return {}
        cosines = exact_cosines(self._gradients.copies, step.layout, team=self._team, step=step.number)
        return {"exact_cosines": cosines}


def exact_cosines(copies: Mapping[int, Tensor], layout: Layout, *, team: Team, step: int) -> list[float]:
    """This worker's row of the N x N cosines, float64, of ``copies`` of its gradients by position. All of the team take
    part; raises RuntimeError where they do not, or are at other steps or of other Layouts.

    Products are formed in float64. A worker without a gradient has cosine 0 to every other.
    """
    states = _gather_rows(torch.tensor([float(step), float(layout.digest)], dtype=torch.float64), team)
    if len(set(map(tuple, states.tolist()))) > 1:
        raise RuntimeError(f"workers were at the steps {states[:, 0].long().tolist()}, or have other parameters")
    gram_NN = torch.zeros(team.size, team.size, dtype=torch.float64)
    for piece in _pieces(copies, layout):
        rows = _gather_rows(piece, team).double()
        gram_NN += rows @ rows.T
    norms = gram_NN.diagonal().sqrt()
    row = gram_NN[team.index] / (norms * norms[team.index]).clamp_min(torch.finfo(torch.float64).tiny)
    return [float(value) for value in row]


def _pieces(copies: Mapping[int, Tensor], layout: Layout) -> Iterator[Tensor]:
    """Float32 [PIECE] on the host: all gradients behind each other, zeros where there is none."""
    piece, num_filled = torch.zeros(PIECE), 0
    for position, width in enumerate(layout.widths):
        copy = copies.get(position)
        flat = torch.zeros(width) if copy is None else copy.reshape(-1).cpu()
        while len(flat):
            part, flat = flat[: PIECE - num_filled], flat[PIECE - num_filled :]
            piece[num_filled : num_filled + len(part)] = part
            num_filled += len(part)
            if num_filled == PIECE:
                yield piece
                piece, num_filled = torch.zeros(PIECE), 0
    if num_filled:
        yield piece


def _gather_rows(row: Tensor, team: Team) -> Tensor:
    """[N, ...] what every worker brings."""
    if team.side is None:
        raise RuntimeError("workers are no longer connected")
    all_N = [torch.empty_like(row) for _ in range(team.size)]
    team.side.allgather([all_N], [row]).wait(datetime.timedelta(seconds=PATIENCE_S))
    return torch.stack(all_N)
