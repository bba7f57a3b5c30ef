"""Facts of tokens: how much of what is read is padding, and how much is a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trueline.judge.facts.fact import Mark, Subject
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.columns.end_tokens import NO_TOKEN, EndTokens
from trueline.schema.columns.first_targets import FirstTargets
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
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
    if not passes or _has_class_a_row(run):
        return None
    num_targets, num_places = sum(tokens.targets for tokens in passes), _places(passes)
    share = min(num_targets / num_places, 1.0)
    value = {"targets": num_targets, "places": num_places, "share": round(share, 4)}
    return f"of rows with a target, {share:.0%} of the places have one that counts in the loss", value


def first_targets(run: Run) -> tuple[str, Any] | None:
    """Behind how many tokens of a row its targets begin, and behind which, where that is one token."""
    rows = run.lists("first_targets").values()
    passes = [tokens for row in rows for tokens in FirstTargets.from_row(row.tolist()) if tokens.rows]
    if not passes or _has_class_a_row(run):
        return None
    num_rows = sum(tokens.rows for tokens in passes)
    least, greatest = min(tokens.least for tokens in passes), max(tokens.greatest for tokens in passes)
    before = _one_token(passes, num_rows, lambda tokens: (tokens.before, tokens.before_rows))
    second = _one_token(passes, num_rows, lambda tokens: (tokens.second, tokens.second_rows))
    of_all = num_rows == sum(tokens.whole_rows for tokens in passes)
    value = {
        "rows": num_rows,
        "least": least,
        "greatest": greatest,
        "before": before,
        "second": second,
        "trained_rows": sum(tokens.trained_rows for tokens in passes),
    }
    number = f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"
    text = f"the first target of a row stands behind {counted(greatest, 'token').replace(f'{greatest:,}', number, 1)}"
    # where all rows begin alike, the token in front of a target says nothing
    if least < greatest and before is not None:
        text += f", directly behind token {before}"
    elif least < greatest and second is not None:
        text += f", 2 places behind token {second}"
    return f"{text}{', the last at its end' if of_all else ''}, in {counted(num_rows, 'row')}", value


def _one_token(
    passes: Sequence[FirstTargets], num_rows: int, of_pass: Callable[[FirstTargets], tuple[int, int]]
) -> int | None:
    """The token that all rows have there."""
    tokens = {of_pass(tokens)[0] for tokens in passes}
    return tokens.pop() if len(tokens) == 1 and sum(of_pass(tokens)[1] for tokens in passes) == num_rows else None


def _skips_first(value: Mapping[str, Any]) -> bool:
    """Whether all first targets stand 2 places behind one token, at several places, and what stands between are tokens
    as those that are trained: a class or a language that is given in front of a text is none of these.
    """
    varies = value["least"] < value["greatest"] and value["before"] is None and value["second"] is not None
    return varies and 2 * value["trained_rows"] > value["rows"]


def _skipped(value: Mapping[str, Any]) -> str:
    return (
        f"the token behind token {value['second']} is never a target: in all of {counted(value['rows'], 'row')} "
        "targets begin 2 places behind that one"
    )


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


def _has_class_a_row(run: Run) -> bool:
    """Whether each row of tokens has one target, as a text has a class, which is counted as if it were the first place:
    it is none of a token. An answer of one token stands behind more of them.
    """
    rows = run.lists("end_tokens").values() if run.has("end_tokens") else ()
    passes = [tokens for row in rows for tokens in EndTokens.from_row(row.tolist()) if tokens.target_rows]
    first_rows = run.lists("first_targets").values() if run.has("first_targets") else ()
    firsts = [tokens for row in first_rows for tokens in FirstTargets.from_row(row.tolist()) if tokens.rows]
    is_one = bool(passes) and all(tokens.targets == tokens.target_rows for tokens in passes)
    return is_one and bool(firsts) and all(tokens.least == tokens.greatest == 1 for tokens in firsts)


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
    Subject(
        "first-targets",
        "data",
        "where targets begin",
        first_targets,
        (
            Mark(
                "first-token-untrained",
                _skips_first,
                _skipped,
                advice="Print the tokens of a row beside its labels around the end of the prompt: targets that are "
                "moved by one begin one place before the answer does.",
            ),
        ),
    ),
)
