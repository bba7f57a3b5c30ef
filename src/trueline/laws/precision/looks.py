"""The precision of the products of a Run, at the steps that were looked at."""

from __future__ import annotations

from collections.abc import Mapping

from trueline.judge.stats.memoize import memoized
from trueline.laws.precision.columns import Products
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@memoized
def looks(run: Run) -> Mapping[tuple[int, int], Products]:
    """By step and rank, those in which there is any product; raises ``CannotTell`` without one."""
    rows = {key: Products.from_json(text) for key, text in sorted(run.texts("products").items())}
    if not rows:
        raise CannotTell("no graph of a forward pass was looked at", reason="not-recorded")
    rows = {key: products for key, products in rows.items() if products.counts}
    if not rows:
        raise CannotTell("the forward pass leaves no product in its graph: it is compiled, or has none")
    return rows
