"""The columns of the workers table that this law measures or alone reads, and what ``other_models`` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "evaluates",
        "int32",
        "",
        "1 where the whole model is in evaluation mode in that pass, and has dropout or batch normalisation; else 0.",
        after="eval_modules",
    ),
    Column(
        "evaluating_parts",
        "string",
        "",
        "On a few sampled steps, JSON of `EvaluatingPart`: parts of the model that are in evaluation mode in a forward "
        "pass that is trained on, and have parameters of their own that are trained.",
    ),
    Column(
        "dropouts",
        "string",
        "",
        "On the same steps, JSON of parts that may drop values: [probability, how many are in training mode, how many "
        "in evaluation mode], by probability.",
    ),
    Column(
        "evaluations",
        "string",
        "",
        "On some sampled steps, JSON of `UntrainedPass`: of forward passes since the last such row, in evaluation mode "
        "or before training, whether they draw random numbers and where, and what they change.",
        after="own_draws",
    ),
    Column(
        "evaluation_values",
        "list<float64>",
        "",
        "Of each weight with a spectral norm that these passes name, in their order: what it is divided by, and its "
        "norm, at least.",
    ),
    Column(
        "other_models",
        "string",
        "",
        "On some sampled steps, JSON of `OtherModel`: models beside or inside the watched one that were called without "
        "gradients and dropped values.",
        after="input_values",
    ),
    Column("other_weights", "list<int64>", "", "Of each of these a digest of some of its parameters."),
)


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A model beside the watched one, or a part of it that nothing trains, whose calls in a step drew random numbers in
    parts that drop values, and returned nothing that has a gradient.

    ``key`` is its number among those that are followed, ``name`` its class, or its path in the watched model; ``drops``
    are the parts, ``p`` is the largest of their probabilities, ``called_at`` the file and line of the first call.
    ``shared``: it was given a tensor that the watched model, or a part of that which is trained, was given, too;
    ``again``: one that it had been given before in this step; ``trained``: one of its parameters has a gradient or, of
    a model beside the watched one, is the optimizer's.
    """

    key: int
    name: str
    drops: tuple[str, ...]
    p: float
    called_at: str
    shared: bool
    again: bool
    trained: bool


def models_text(models: Sequence[OtherModel]) -> str:
    """The string of the column."""
    return json.dumps([astuple(model) for model in models])


def other_models(text: str) -> tuple[OtherModel, ...]:
    """Of one row of the column."""
    return tuple(
        OtherModel(int(key), str(name), tuple(drops), float(p), str(at), bool(shared), bool(again), bool(trained))
        for key, name, drops, p, at, shared, again, trained in json.loads(text)
    )
