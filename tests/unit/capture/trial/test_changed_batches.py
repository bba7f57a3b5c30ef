"""Batches changed in one way, whatever holds their tensors."""

import dataclasses
from collections import UserDict, namedtuple

import pytest
import torch

from trueline.capture.trial.changed_batches import MORE_PADDING, Unchangeable, changed, leaves, rows_of, what_counts

IDS = torch.arange(1, 25).view(4, 6)
Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Held:
    x: torch.Tensor
    names: list[str]


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        [IDS, IDS[:, 0]],
        Pair(IDS, IDS[:, 0]),
        {"ids": IDS, "more": {"x": IDS.float()}, "scale": torch.tensor(2.0), "positions": torch.arange(6)[None]},
        UserDict({"ids": IDS}),
        Held(IDS, ["a", "b", "c", "d"]),
    ],
)
def test_halves_put_together_are_the_batch_and_its_reverse_twice_is_too(batch):
    assert rows_of(batch, 4).count == 4
    first, second, reverse = (changed(batch, change, 4) for change in ("first", "second", "rows"))
    assert type(first) is type(reverse) is type(batch)
    again = changed(reverse, "rows", 4)
    for (_, x), (_, a), (_, b), (_, r), (_, twice) in zip(
        *map(leaves, (batch, first, second, reverse, again)), strict=True
    ):
        if x.dim() and len(x) == 4:
            assert torch.equal(torch.cat([a, b]), x)
            assert torch.equal(r, x.flip(0))
        else:
            assert torch.equal(a, x)
            assert torch.equal(r, x)
        assert torch.equal(twice, x)
    if isinstance(batch, Held):
        assert (first.names, reverse.names) == (["a", "b"], ["d", "c", "b", "a"])


def test_sequences_first_are_cut_where_the_loader_says_that_samples_are():
    assert changed(IDS.T.clone(), "first", 4).shape == (6, 2)
    assert rows_of(IDS, 4).sure
    assert not rows_of(IDS, None).sure
    assert not rows_of(torch.zeros(4, 4), 4).sure


@pytest.mark.parametrize(
    ("batch", "why"),
    [("text", "no tensor"), ([IDS, torch.zeros(5, 6)], "no dimension of the 4 rows"), (torch.zeros(0), "0 rows")],
)
def test_what_has_no_rows_in_common_cannot_be_changed(batch, why):
    with pytest.raises(Unchangeable, match=why):
        rows_of(batch, None)


def padded(*, left=False, spare=0):
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]) if not spare else torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    mask = mask.flip(1) if left else mask
    ids = torch.where(mask == 1, torch.arange(1, 9).view(2, 4), 9)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.where(mask == 1, ids, -100),
        "score": torch.ones(2),
    }


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_added_as_it_is_there_already(left):
    batch = padded(left=left)
    more = changed(batch, "padding", 2)
    for name, fill in (("input_ids", 9), ("attention_mask", 0), ("labels", -100)):
        new = more[name][:, :MORE_PADDING] if left else more[name][:, -MORE_PADDING:]
        old = more[name][:, MORE_PADDING:] if left else more[name][:, :-MORE_PADDING]
        assert (new == fill).all()
        assert torch.equal(old, batch[name])
    assert torch.equal(more["score"], batch["score"])


def test_padding_that_no_row_needs_is_taken_out():
    assert changed(padded(spare=1), "padding", 2)["input_ids"].tolist() == [[1, 2, 9], [5, 6, 7]]


def test_labels_show_padding_where_there_is_no_mask_and_a_masked_prompt_is_none():
    batch = {name: x for name, x in padded(spare=1).items() if name != "attention_mask"}
    assert changed(batch, "padding", 2)["input_ids"].shape == (2, 3)
    prompt = {"input_ids": IDS, "labels": torch.where(torch.arange(6) < 3, -100, IDS)}
    with pytest.raises(Unchangeable, match="neither an attention mask nor labels"):
        changed(prompt, "padding", 4)


def test_each_half_counts_what_a_mean_may_be_over():
    counts = what_counts(padded(), 2)
    assert counts["rows"] == (1, 1)
    assert counts["what is not -100 in `labels`"] == (3, 4)
    assert counts["what is not -100 in `labels` without its first position"] == (2, 3)
    assert counts["what is 1 in `attention_mask`"] == (3, 4)
