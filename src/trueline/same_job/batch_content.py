"""Where the first recorded batches of two Runs part: the first token, padding, a tail that was cut, the mask of labels.

Letters: B rows of a batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.same_job.difference import Difference
from trueline.schema.errors import RunError
from trueline.schema.text.words import counted
from trueline.store.reader import Run

Ints = NDArray[np.int64]
_WHOLE = ("int64", "int32", "int16", "uint8", "bool")
_TOKENS = ("input_ids", "in0", "tokens", "idx", "x")
_LABELS = ("labels", "targets", "y")
_MASK = "attention_mask"
IGNORED = -100
"""``ignore_index`` of torch's cross-entropy, by which labels are left out of the loss."""


def compare_content(one: Run, other: Run, *, same_inputs: bool | None) -> list[Difference] | None:
    """What differs in the integers that the first recorded forward pass was given; None where the Runs did not store
    these at a step that both recorded. ``same_inputs``: whether digests of their first samples agree, None where there
    are none.
    """
    if not one.has_records or not other.has_records:
        return None
    common = sorted(set(map(int, one.record_steps)) & set(map(int, other.record_steps)))
    if not common:
        return None
    mine, theirs = (_given(run, common[0]) for run in (one, other))
    if not set(mine) & set(theirs):
        return None
    return list(content_differences(mine, theirs, step=common[0], same_inputs=same_inputs))


def _given(run: Run, step: int) -> dict[str, Ints]:
    """The integers that the first call of a step takes, by slot; those that were not stored are left out."""
    table: Any = cast(Any, run).records(steps=[step], ranks=run.record_ranks[:1], phases=["fwd"])
    rows = cast(list[dict[str, Any]], table.to_pylist())
    found: dict[str, Ints] = {}
    for row in rows:
        if (row["name"], row["call"]) != (rows[0]["name"], rows[0]["call"]) or row["slot"].startswith("out"):
            continue
        if row["tensor"] is None or row["dtype"] not in _WHOLE or len(row["shape"]) != 2:
            continue
        try:
            found[row["slot"]] = run.tensor(row).data.astype(np.int64)
        except RunError:  # damaged: what else was stored is compared
            continue
    return found


def content_differences(
    mine: Mapping[str, Ints], theirs: Mapping[str, Ints], *, step: int, same_inputs: bool | None = None
) -> Iterator[Difference]:
    """What differs in batches [B, T] by slot: one difference for the inputs, one for the labels. Of inputs that are
    known to differ labels say nothing.
    """
    tokens = next((slot for slot in _TOKENS if slot in mine and slot in theirs), None)
    if tokens is not None and not np.array_equal(mine[tokens], theirs[tokens]):
        yield _of_tokens(mine[tokens], theirs[tokens], (mine.get(_MASK), theirs.get(_MASK)), step)
        return
    if tokens is None and same_inputs is False:
        return
    of_same = " of the same tokens" if tokens is not None else " of the same samples" if same_inputs else ""
    if _MASK in mine and _MASK in theirs and not np.array_equal(mine[_MASK], theirs[_MASK]):
        seen = [f"{counted(int(np.sum(side[_MASK] != 0)), 'token')} seen" for side in (mine, theirs)]
        yield _difference("attention-mask", f"attention mask{of_same} in step {step}", seen[0], seen[1], 92)
    labels = next((slot for slot in _LABELS if slot in mine and slot in theirs), None)
    if labels is not None and not np.array_equal(mine[labels], theirs[labels]):
        yield _of_labels(mine[labels], theirs[labels], step, of_same)


def _of_tokens(a_BT: Ints, b_BT: Ints, masks: tuple[Ints | None, Ints | None], step: int) -> Difference:
    sides = _padding_side(a_BT, masks[0]), _padding_side(b_BT, masks[1])
    if "" not in sides and sides[0] != sides[1] and _same_inside(a_BT, b_BT, sides):
        return _difference("padding", f"side of padding in step {step}", *sides, 90)
    if len(a_BT) == len(b_BT) and a_BT.shape[1] != b_BT.shape[1]:
        short = min(a_BT.shape[1], b_BT.shape[1])
        lengths = (counted(a_BT.shape[1], "token"), counted(b_BT.shape[1], "token"))
        if np.array_equal(a_BT[:, :short], b_BT[:, :short]):
            return _difference("tail", f"length of rows that begin alike in step {step} (cut, or padded)", *lengths, 92)
        if np.array_equal(a_BT[:, -short:], b_BT[:, -short:]):
            return _difference("head", f"length of rows that end alike in step {step} (cut, or padded)", *lengths, 92)
    if a_BT.shape != b_BT.shape:
        shapes = (str(list(a_BT.shape)), str(list(b_BT.shape)))
        return _difference("batch-shape", f"shape of the batch in step {step}", *shapes, 92)
    row, place = (int(each) for each in np.argwhere(a_BT != b_BT)[0])
    share = f"{float((a_BT != b_BT).mean()):.0%} of tokens differ"
    says = f"first token that differs in step {step} (row {row}, position {place})"
    return _difference("first-token", says, str(a_BT[row, place]), str(b_BT[row, place]), 93, note=share)


def _padding_side(tokens_BT: Ints, mask_BT: Ints | None) -> str:
    """``left`` or ``right``, by the mask or else by a token that is repeated at one end of rows; "" for neither."""
    if mask_BT is not None and mask_BT.shape == tokens_BT.shape:
        at_left, at_right = (bool((mask_BT[:, end] == 0).any()) for end in (0, -1))
    elif tokens_BT.shape[1] > 1:
        at_left = bool((tokens_BT[:, 0] == tokens_BT[:, 1]).any())
        at_right = bool((tokens_BT[:, -1] == tokens_BT[:, -2]).any())
    else:
        return ""
    return "" if at_left == at_right else "left" if at_left else "right"


def _same_inside(a_BT: Ints, b_BT: Ints, sides: tuple[str, str]) -> bool:
    """Whether rows hold the same tokens in the same order once the padding at their ``sides`` is taken off."""
    if len(a_BT) != len(b_BT):
        return False
    rows = zip(_without_padding(a_BT, sides[0]), _without_padding(b_BT, sides[1]), strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in rows)


def _without_padding(tokens_BT: Ints, side: str) -> Iterator[Ints]:
    """Rows without the token that most of them have at that side, as often as it is repeated from there."""
    ends_B = tokens_BT[:, 0 if side == "left" else -1]
    values, counts = np.unique(ends_B, return_counts=True)
    padding = values[int(np.argmax(counts))]
    for row_T in tokens_BT:
        kept = np.flatnonzero(row_T != padding)
        if not kept.size:
            yield row_T[:0]
        else:
            yield row_T[int(kept[0]) :] if side == "left" else row_T[: int(kept[-1]) + 1]


def _of_labels(a_BT: Ints, b_BT: Ints, step: int, of_same: str) -> Difference:
    ignored = [int(np.sum(side == IGNORED)) for side in (a_BT, b_BT)]
    if ignored[0] != ignored[1]:
        texts = [f"{counted(each, 'label')} ignored" for each in ignored]
        return _difference("label-mask", f"mask of the labels{of_same} in step {step}", texts[0], texts[1], 93)
    if a_BT.shape != b_BT.shape:
        shapes = (str(list(a_BT.shape)), str(list(b_BT.shape)))
        return _difference("label-shape", f"shape of the labels in step {step}", *shapes, 92)
    row, place = (int(each) for each in np.argwhere(a_BT != b_BT)[0])
    says = f"first label that differs in step {step} (row {row}, position {place})"
    return _difference("first-label", says, str(a_BT[row, place]), str(b_BT[row, place]), 93)


def _difference(name: str, says: str, run: str, ref: str, likely: int, *, note: str = "") -> Difference:
    return Difference("dataset-differs", "data", name, says, run, ref, likely, "start", note=note)
