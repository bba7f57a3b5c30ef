"""Two batches part at a token, by their padding, by a tail that was cut, or by a mask: each is named as what it is."""

import numpy as np
import pytest

from trueline.same_job.batch_content import IGNORED, content_differences

ROWS = np.array([[5, 6, 7, 8, 0, 0], [9, 4, 3, 2, 1, 0]])
LEFT_PADDED = np.array([[0, 0, 5, 6, 7, 8], [0, 9, 4, 3, 2, 1]])


def differences(run_slots, ref_slots):
    return [
        (difference.name, difference.run, difference.ref)
        for difference in content_differences(run_slots, ref_slots, step=0)
    ]


def test_equal_batches_do_not_differ():
    assert differences({"input_ids": ROWS}, {"input_ids": ROWS.copy()}) == []


def test_the_first_token_that_differs():
    changed = ROWS.copy()
    changed[1, 2] = 77
    (difference,) = content_differences({"input_ids": changed}, {"input_ids": ROWS}, step=3)
    assert (difference.name, difference.run, difference.ref) == ("first-token", "77", "3")
    assert "row 1, position 2" in difference.says
    assert difference.note == "8% of tokens differ"


@pytest.mark.parametrize("masked", [True, False])
def test_the_side_of_padding(masked):
    sides = [
        {"input_ids": rows} | ({"attention_mask": (rows != 0).astype(int)} if masked else {})
        for rows in (LEFT_PADDED, ROWS)
    ]
    assert differences(*sides) == [("padding", "left", "right")]


def test_other_tokens_on_another_side_are_no_padding():
    assert [name for name, _, _ in differences({"input_ids": LEFT_PADDED + 1}, {"input_ids": ROWS})] == ["first-token"]


def test_a_tail_that_was_cut():
    assert differences({"input_ids": ROWS[:, :4]}, {"input_ids": ROWS}) == [("tail", "4 tokens", "6 tokens")]
    assert differences({"input_ids": ROWS[:, 2:]}, {"input_ids": ROWS}) == [("head", "4 tokens", "6 tokens")]


def test_masks_of_the_same_tokens():
    whole_mask, padding_mask = np.ones_like(ROWS), (ROWS != 0).astype(int)
    assert differences(
        {"input_ids": ROWS, "attention_mask": whole_mask}, {"input_ids": ROWS, "attention_mask": padding_mask}
    ) == [("attention-mask", "12 tokens seen", "9 tokens seen")]


def test_labels_of_the_same_tokens():
    labels = ROWS.copy()
    masked = np.where(np.arange(6) < 2, IGNORED, labels)
    shifted = np.roll(labels, 1, axis=1)
    sides = [{"input_ids": ROWS, "labels": difference} for difference in (masked, labels, shifted)]
    assert differences(sides[0], sides[1]) == [("label-mask", "4 labels ignored", "0 labels ignored")]
    assert differences(sides[2], sides[1]) == [("first-label", "0", "5")]


def test_labels_are_of_the_same_inputs_where_these_are_known_to_be_the_same():
    labels = [ROWS.copy(), np.where(np.arange(6) < 2, IGNORED, ROWS)]
    sides = [{"labels": label} for label in labels]  # inputs of floating point, which are not stored
    says = {
        same_inputs: [difference.says for difference in content_differences(*sides, step=0, same_inputs=same_inputs)]
        for same_inputs in (True, None, False)
    }
    assert says == {
        True: ["mask of the labels of the same samples in step 0"],
        None: ["mask of the labels in step 0"],
        False: [],
    }
