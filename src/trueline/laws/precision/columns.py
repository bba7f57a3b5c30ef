"""The column of the workers table that this law measures, and what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "products",
        "string",
        "",
        "On a few sampled steps, JSON of `Products`: in which dtypes the first forward pass computes matrix products, "
        "convolutions and attention, and in which autocast it was called.",
        after="eval_modules",
    ),
)


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products, convolutions and attention in the graph of one forward pass.

    ``autocast`` has by device type the dtype of the autocast that the model was called in; the parameters are on
    ``device``. ``counts`` are products by the dtype of their result, ``weights`` those of them with a trained
    parameter, ``elements`` that these have. ``names`` are the first parameters by dtype. ``hidden``: a part keeps its
    operations to itself, as compiled ones do. ``complete``: the whole graph was looked at.
    """

    autocast: Mapping[str, str]
    device: str
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    elements: Mapping[str, int] = field(default_factory=dict[str, int])
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    hidden: bool = False
    complete: bool = True

    @property
    def declared(self) -> str:
        """The dtype that autocast declares for products on any device, '' without."""
        return self.autocast.get(self.device) or next(iter(self.autocast.values()), "")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Products:
        """The products that ``to_json`` wrote."""
        document: dict[str, Any] = json.loads(text)
        document["names"] = {dtype: tuple(params) for dtype, params in document["names"].items()}
        return cls(**document)
