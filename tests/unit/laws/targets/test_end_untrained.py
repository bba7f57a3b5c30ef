"""end-untrained: ends of texts that are read and no target; ends that are trained, and what only looks like one."""

import dataclasses

import pytest
import torch
from tests.unit.healthy_run import write_run

from trueline.capture.probes.losses import end_tokens
from trueline.laws.targets import end_untrained
from trueline.schema.columns.end_tokens import NO_TOKEN, EndTokens
from trueline.schema.columns.target_places import PLACES
from trueline.schema.errors import CannotTell

END, PAD, NEWLINE, IMAGE = 0, 1, 2, 3
TEXTS = [[9, 8, 7], [9, 5, 6, 7, 8], [8, 6], [5, 9, 6, 8]]
NEXT = [100 if place == 1 else 0 for place in PLACES]


def passed(texts, *, end=(), pad=PAD, mask=True, left_out=(), eos=NO_TOKEN, length=None, cut=0):
    """``EndTokens`` of rows that end with ``end`` and are padded, where the labels of ``left_out`` are left out."""
    rows = [[*text, *end] for text in texts]
    length = length or max(map(len, rows))
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    attended = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    labels = ids.masked_fill((attended == 0) if mask else (ids == pad), -100)
    for token in left_out:
        labels = labels.masked_fill(ids == token, -100)
    if cut:
        labels = labels.masked_fill(attended.cumsum(1) > attended.sum(1, keepdim=True) - cut, -100)
    (tokens,) = EndTokens.from_row(
        end_tokens.row_of(ids, attended if mask else None, labels[:, 1:], labels[:, 1:] != -100, 0, eos).tolist()
    )
    return tokens


def found_in(tmp_path, *passes, places=NEXT):
    rows = {}
    for step in range(8):
        row = [number for tokens in passes for number in tokens.to_row()]
        rows[step, 0] = {"end_tokens": row, "target_places": [100] * len(PLACES) + places}
    return end_untrained.check(write_run(tmp_path, rows))


def test_numbers_are_those_of_the_rows():
    tokens = passed(TEXTS, end=[END], pad=END, left_out=[END], eos=END)
    ends = {"length": 6, "rows": 3, "end": END, "end_rows": 3, "single_rows": 3, "end_reads": 4, "end_targets": 0}
    padding = {"targets": 10, "pads": 6, "pad": END, "target_rows": 4, "last": 8, "last_rows": 2}
    gaps = {"gaps": 0, "gap": NO_TOKEN, "gap_places": 0, "gap_targets": 0}
    configured = {"eos": END, "eos_reads": 4, "eos_targets": 0}
    assert dataclasses.asdict(tokens) == ends | padding | gaps | configured  # the longest row is not padded


def test_an_end_that_is_left_out_with_the_padding_is_found(tmp_path):
    (finding,) = found_in(tmp_path, passed(TEXTS, end=[END], pad=END, left_out=[END]))
    assert (finding.severity, finding.evidence["kind"], finding.false_alarm_rate) == ("warning", "padding", 0.0)
    assert finding.claim.startswith("Token 0 ends 24 of 24 rows and is a target in none: the padding is the same token")


def test_an_end_that_the_configuration_names_is_found_where_labels_are_cut(tmp_path):
    (finding,) = found_in(tmp_path, passed(TEXTS, end=[END], cut=1, eos=END))
    assert (finding.severity, finding.evidence["kind"]) == ("warning", "cut")


def test_without_a_mask_batches_of_many_lengths_tell_that_it_is_no_padding(tmp_path):
    wrong = {"end": [END], "pad": END, "mask": False, "left_out": [END]}
    passes = [passed(TEXTS, **wrong), passed([*TEXTS, [9] * 6], **wrong)]
    assert [finding.evidence["kind"] for finding in found_in(tmp_path / "longest", *passes)] == ["cut"]
    padded = [passed(TEXTS, mask=False, length=length) for length in (8, 16)]
    assert found_in(tmp_path / "multiples", *padded) == []
    longest_without = [passed(texts, mask=False) for texts in (TEXTS, [*TEXTS, [9] * 6])]
    assert found_in(tmp_path / "words", *longest_without) == []


def test_an_end_within_packed_rows_is_found(tmp_path):
    packed = [[token for text in TEXTS for token in (*text, END)][:-1]] * 4
    (finding,) = found_in(tmp_path / "wrong", passed(packed, left_out=[END], eos=END))
    assert finding.claim == "Token 0, which ends texts, stands at 96 places within rows and is a target at none."
    assert found_in(tmp_path / "right", passed(packed, eos=END)) == []


def test_an_end_that_is_padding_alone_is_to_be_confirmed(tmp_path):
    (finding,) = found_in(tmp_path, passed(TEXTS, pad=END, eos=END))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "no-end")


@pytest.mark.parametrize(
    "tokens",
    [
        passed(TEXTS, end=[END]),
        passed(TEXTS, end=[END], pad=END, eos=END),  # the first end behind a text keeps its label
        passed(TEXTS),  # of texts without an end
        passed(TEXTS, end=[END, NEWLINE], left_out=[NEWLINE], eos=END),  # what follows the end of a turn
        passed([[9, 8, IMAGE, 7, 6]] * 4, end=[END], left_out=[IMAGE], eos=END),
        passed(TEXTS, mask=False, length=12),
    ],
)
def test_healthy_rows_are_silent(tmp_path, tokens):
    assert found_in(tmp_path, tokens) == []


def test_targets_that_are_not_the_next_token_are_left_alone(tmp_path):
    """As of a masked language model, which never predicts what separates its texts."""
    with pytest.raises(CannotTell, match="next"):
        found_in(tmp_path, passed(TEXTS, end=[END], pad=END, left_out=[END]), places=[0] * len(PLACES))


def test_few_rows_tell_nothing(tmp_path):
    with pytest.raises(CannotTell, match="fewer than 16 rows"):
        found_in(tmp_path, passed(TEXTS[:2], end=[END], pad=END, left_out=[END]))


def test_rows_of_another_version_are_left_out():
    assert EndTokens.from_row([1, 2, 3]) == ()
