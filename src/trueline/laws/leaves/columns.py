"""The columns of the workers table that this law measures, and what ``loss_leaves`` holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "loss_leaves",
        "string",
        "",
        "On a few sampled steps, JSON of `LossLeaves`: tensors that need a gradient and that the losses of the step "
        "are computed from, those of them that no parameter of the model is, and what is computed of parameters and "
        "was there at the last such step.",
        after="eval_modules",
    ),
    Column(
        "leaf_changes",
        "list<int64>",
        "",
        "Of these, in their order, whether the elements that were looked at have changed since the last such step: 1 "
        "or 0; -1 where they were not looked at then.",
    ),
)

Holder = Literal["attribute", "module", "nobody"]


@dataclass(frozen=True, slots=True)
class OutsideLeaf:
    """A tensor that needs a gradient, takes part in the loss, and is no parameter of the watched model.

    ``holder``: an ``attribute`` of the model that registers nothing, such as a list, from which ``name`` leads to it;
    another ``module``, by the class of the outermost and the way from there; or ``nobody``. ``trains``: the module that
    it is of is in training mode. ``is_parameter`` of ``torch.nn``. ``optimizer`` is the class of one that holds it, ''
    without. ``again``: it is the same tensor as at the last look; None at the first.
    """

    name: str
    shape: tuple[int, ...]
    holder: Holder
    is_parameter: bool
    trains: bool
    optimizer: str
    again: bool | None


@dataclass(frozen=True, slots=True)
class LossLeaves:
    """Of the losses of one step: how many parameters of the model they are computed ``of``; what is ``outside`` (of
    ``num_outside`` the first ones), and ``inputs``, tensors that need a gradient and are no parameters; ``old``,
    parameters of which something was computed before the last look (at ``last_step``), and is used again. Not
    ``complete`` where the graph is larger than what is looked at. ``sharded``: a framework puts tensors of its own in
    the place of parameters.
    """

    of: int
    outside: tuple[OutsideLeaf, ...]
    num_outside: int
    inputs: int
    old: tuple[str, ...]
    last_step: int | None
    complete: bool
    sharded: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LossLeaves:
        """The same from what ``to_json`` gave."""
        document: dict[str, Any] = json.loads(text)
        rows: list[dict[str, Any]] = document["outside"]
        for row in rows:
            row["shape"] = tuple(row["shape"])
        document["outside"] = tuple(OutsideLeaf(**row) for row in rows)
        document["old"] = tuple(document["old"])
        return cls(**document)
