"""Facts of tokens: how much of what is read is padding, and how much is a target."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Mark, Subject
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.columns.end_tokens import NO_TOKEN, EndTokens
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

HALF = 0.5
"""Share of the places that are padding from which on most of the computing is of padding."""


def padding(run: Run) -> tuple[str, Any] | None:
    """Share of the places that an attention mask leaves out, what stands there, and on which side."""
    passes = _passes(run)
    if not passes:
        return None
    num_pads, num_places = sum(tokens.pads for tokens in passes), _places(passes)
    pads = sorted({tokens.pad for tokens in passes if tokens.pads and tokens.pad != NO_TOKEN})
    if not num_pads:
        return None
    share = min(num_pads / num_places, 1.0)
    token = f" (token {pads[0]})" if len(pads) == 1 else ""
    side = _side(run)
    where = f", {side}" if side else ""
    value = {"share": round(share, 4), "tokens": pads[:8], "side": side}
    return f"{share:.0%} of the places of tokens are padding{token}{where}", value


def targets(run: Run) -> tuple[str, Any] | None:
    """Share of the places that have a target which counts in the loss."""
    passes = _passes(run)
    if not passes:
        return None
    num_targets, num_places = sum(tokens.targets for tokens in passes), _places(passes)
    share = min(num_targets / num_places, 1.0)
    value = {"targets": num_targets, "places": num_places, "share": round(share, 4)}
    return f"of rows with a target, {share:.0%} of the places have one that counts in the loss", value


def _side(run: Run) -> str:
    """Where padding stands in the rows that were looked at; '' where that was not seen."""
    rows = run.lists("edge_tokens").values()
    passes = [tokens for row in rows for tokens in EdgeTokens.from_row(row.tolist())]
    left, right = sum(tokens.left for tokens in passes), sum(tokens.right for tokens in passes)
    return "on both sides" if left and right else "on the left" if left else "on the right" if right else ""


def _passes(run: Run) -> list[EndTokens]:
    """Of forward passes over tokens that were looked at; empty where the model reads none."""
    rows = run.lists("end_tokens").values()
    passes = [tokens for row in rows for tokens in EndTokens.from_row(row.tolist()) if tokens.target_rows]
    if rows and not passes:
        raise CannotTell("no pass over tokens was seen in which each row has a target")
    return passes


def _places(passes: list[EndTokens]) -> int:
    """Places of the rows that have a target."""
    return sum(tokens.target_rows * tokens.length for tokens in passes)


SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "padding",
        "data",
        "padding",
        padding,
        (
            Mark(
                "mostly-padding",
                lambda value: value["share"] > HALF,
                advice="Pad to the longest sample of the batch, and put samples of like length into one batch.",
            ),
        ),
    ),
    Subject("token-targets", "data", "tokens that are targets", targets),
)
