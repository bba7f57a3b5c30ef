"""Records steps of a model in this process, for the tests of the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trueline.capture.record.session import Session
from trueline.schema.columns.records import STAT_NAMES, StackRecord, StepRecords, TensorRecord
from trueline.schema.plan import Plan

Row = dict[str, Any]


class Recording:
    """A session on ``model`` whose records are kept; an exception of the recorder fails the test."""

    def __init__(self, model: nn.Module, plan: dict[str, Any], optimizer: torch.optim.Optimizer | None = None) -> None:
        self.steps: list[list[Row]] = []
        self.tensors: dict[str, TensorRecord] = {}
        self.stacks: dict[int, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.session = Session(model, plan=Plan.load(plan), write=self._take, failed=_raise, notes=self.notes)
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self.session.begin_update(optimizer))
            optimizer.register_step_post_hook(lambda *_: self.session.close_step())

    def step(self, number: int, run: Callable[[], Any]) -> list[Row]:
        """The rows of step ``number``, which ``run`` makes."""
        self.session.open_step(number)
        run()
        self.session.close_step()
        self.session.drain(wait=True)
        return self.steps[-1]

    def _take(self, record: Any) -> None:
        if isinstance(record, StepRecords):
            self.steps.append(rows_of(record))
        elif isinstance(record, TensorRecord):
            self.tensors[record.key] = record
        elif isinstance(record, StackRecord):
            self.stacks[record.id] = record.frames


def rows_of(record: StepRecords) -> list[Row]:
    """One dict a row, with the statistics of the row it is the same as."""
    names = list(record.columns)
    rows: list[Row] = [dict(zip(names, values, strict=True)) for values in zip(*record.columns.values(), strict=True)]
    place = {int(row): index for index, row in enumerate(record.measured_M)}
    for index, row in enumerate(rows):
        at = place.get(index if row["same_as"] is None else row["same_as"])
        row["shape"] = tuple(row["shape"])
        row["measured"] = index in place
        if at is not None and record.stats_MS is not None:
            row |= dict(zip(STAT_NAMES, record.stats_MS[at].tolist(), strict=True))
        if at is not None and record.fingerprint_M is not None:
            row["fingerprint"] = int(record.fingerprint_M[at])
    return rows


def site(row: Row) -> str:
    """The site of a row without step and rank."""
    return f"{row['micro']}/{row['phase']}/{row['name']}#{row['call']}:{row['slot']}"


def _raise(error: Exception) -> None:
    raise error
