"""Differences between the first recorded batches of two Runs: first token, padding, a cut tail, mask of labels.

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
# Keyword names of transformers first, then positional ones and those of nanoGPT and its kin.
_TOKENS = ("input_ids", "in0", "tokens", "idx", "x")
_LABELS = ("labels", "targets", "y")
_MASK = "attention_mask"
IGNORED = -100
"""Default ``ignore_index`` of torch's cross-entropy, which leaves labels out of the loss."""


def compare_content(run: Run, ref: Run, *, same_inputs: bool | None) -> list[Difference] | None:
    """Differences in the integer inputs of the first recorded forward pass.

    Returns None where the Runs did not store these at a step that both recorded. ``same_inputs`` tells whether digests
    of their first samples agree; None without digests.
    """
    if not run.has_records or not ref.has_records:
        return None
    common = sorted(set(map(int, run.record_steps)) & set(map(int, ref.record_steps)))
    if not common:
        return None
    run_slots, ref_slots = (_integer_inputs(side, common[0]) for side in (run, ref))
    if not set(run_slots) & set(ref_slots):
        return None
    return list(content_differences(run_slots, ref_slots, step=common[0], same_inputs=same_inputs))


def _integer_inputs(run: Run, step: int) -> dict[str, Ints]:
    """Stored integer inputs [B, T] of the first call of a step, by slot."""
    table: Any = cast(Any, run).records(steps=[step], ranks=run.record_ranks[:1], phases=["fwd"])
    rows = cast(list[dict[str, Any]], table.to_pylist())
    integers: dict[str, Ints] = {}
    for row in rows:
        if (row["name"], row["call"]) != (rows[0]["name"], rows[0]["call"]) or row["slot"].startswith("out"):
            continue
        if row["tensor"] is None or row["dtype"] not in _WHOLE or len(row["shape"]) != 2:
            continue
        try:
            integers[row["slot"]] = run.tensor(row).data.astype(np.int64)
        except RunError:  # damaged: what else was stored is compared
            continue
    return integers


def content_differences(
    run: Mapping[str, Ints], ref: Mapping[str, Ints], *, step: int, same_inputs: bool | None = None
) -> Iterator[Difference]:
    """Differences in batches [B, T] by slot: one for the inputs, one for the labels.

    Labels are left out where the inputs are known to differ.
    """
    tokens = next((slot for slot in _TOKENS if slot in run and slot in ref), None)
    if tokens is not None and not np.array_equal(run[tokens], ref[tokens]):
        yield _token_difference(run[tokens], ref[tokens], (run.get(_MASK), ref.get(_MASK)), step)
        return
    if tokens is None and same_inputs is False:
        return
    of_inputs = " of the same tokens" if tokens is not None else " of the same samples" if same_inputs else ""
    if _MASK in run and _MASK in ref and not np.array_equal(run[_MASK], ref[_MASK]):
        num_seen = [f"{counted(int(np.sum(side[_MASK] != 0)), 'token')} seen" for side in (run, ref)]
        yield _difference("attention-mask", f"attention mask{of_inputs} in step {step}", num_seen[0], num_seen[1], 92)
    labels = next((slot for slot in _LABELS if slot in run and slot in ref), None)
    if labels is not None and not np.array_equal(run[labels], ref[labels]):
        yield _label_difference(run[labels], ref[labels], step, of_inputs)


def _token_difference(a_BT: Ints, b_BT: Ints, masks: tuple[Ints | None, Ints | None], step: int) -> Difference:
    sides = _padding_side(a_BT, masks[0]), _padding_side(b_BT, masks[1])
    if "" not in sides and sides[0] != sides[1] and _has_same_tokens(a_BT, b_BT, sides):
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
    row, column = (int(index) for index in np.argwhere(a_BT != b_BT)[0])
    share = f"{float((a_BT != b_BT).mean()):.0%} of tokens differ"
    says = f"first token that differs in step {step} (row {row}, position {column})"
    return _difference("first-token", says, str(a_BT[row, column]), str(b_BT[row, column]), 93, note=share)


def _padding_side(tokens_BT: Ints, mask_BT: Ints | None) -> str:
    """Side of padding by the mask, else by a token repeated at one end of rows: ``left``, ``right`` or ""."""
    if mask_BT is not None and mask_BT.shape == tokens_BT.shape:
        at_left, at_right = (bool((mask_BT[:, end] == 0).any()) for end in (0, -1))
    elif tokens_BT.shape[1] > 1:
        at_left = bool((tokens_BT[:, 0] == tokens_BT[:, 1]).any())
        at_right = bool((tokens_BT[:, -1] == tokens_BT[:, -2]).any())
    else:
        return ""
    return "" if at_left == at_right else "left" if at_left else "right"


def _has_same_tokens(a_BT: Ints, b_BT: Ints, sides: tuple[str, str]) -> bool:
    """Tell whether rows hold equal tokens in the same order without the padding at their ``sides``."""
    if len(a_BT) != len(b_BT):
        return False
    rows = zip(_unpadded_rows(a_BT, sides[0]), _unpadded_rows(b_BT, sides[1]), strict=True)
    return all(np.array_equal(a_T, b_T) for a_T, b_T in rows)


def _unpadded_rows(tokens_BT: Ints, side: str) -> Iterator[Ints]:
    """Yield rows without the run, at that side, of the token that most rows have there."""
    ends_B = tokens_BT[:, 0 if side == "left" else -1]
    values, counts = np.unique(ends_B, return_counts=True)
    padding = values[int(np.argmax(counts))]
    for row_T in tokens_BT:
        tokens = np.flatnonzero(row_T != padding)
        if not tokens.size:
            yield row_T[:0]
        else:
            yield row_T[int(tokens[0]) :] if side == "left" else row_T[: int(tokens[-1]) + 1]


def _label_difference(a_BT: Ints, b_BT: Ints, step: int, of_inputs: str) -> Difference:
    ignored = [int(np.sum(side == IGNORED)) for side in (a_BT, b_BT)]
    if ignored[0] != ignored[1]:
        texts = [f"{counted(num_labels, 'label')} ignored" for num_labels in ignored]
        return _difference("label-mask", f"mask of the labels{of_inputs} in step {step}", texts[0], texts[1], 93)
    if a_BT.shape != b_BT.shape:
        shapes = (str(list(a_BT.shape)), str(list(b_BT.shape)))
        return _difference("label-shape", f"shape of the labels in step {step}", *shapes, 92)
    row, column = (int(index) for index in np.argwhere(a_BT != b_BT)[0])
    says = f"first label that differs in step {step} (row {row}, position {column})"
    return _difference("first-label", says, str(a_BT[row, column]), str(b_BT[row, column]), 93)


def _difference(name: str, says: str, run: str, ref: str, likely: int, *, note: str = "") -> Difference:
    return Difference("dataset-differs", "data", name, says, run, ref, likely, "start", note=note)
