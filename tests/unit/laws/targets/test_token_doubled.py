"""token-doubled: special tokens that stand twice at the beginning or the end of rows; words and padding that do."""

import dataclasses

import pytest
import torch
from tests.unit.healthy_run import write_run

from trueline.capture.probes.losses import edge_tokens
from trueline.laws.targets import token_doubled
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.errors import CannotTell

BEGIN, END, PAD = 1, 2, 0
TEXTS = [[9, 8, 7], [9, 5, 6, 7, 8], [8, 6], [5, 9, 6, 8]]


def passed(rows, *, side="right", mask=True):
    """``EdgeTokens`` of rows that are padded on a side."""
    length = max(map(len, rows))
    padded = [
        row + [PAD] * (length - len(row)) if side == "right" else [PAD] * (length - len(row)) + row for row in rows
    ]
    ids = torch.tensor(padded)
    (tokens,) = EdgeTokens.from_row(edge_tokens.row_of(ids, (ids != PAD).long() if mask else None).tolist())
    return tokens


def found_in(tmp_path, *passes, steps=8):
    rows = {(step, 0): {"edge_tokens": [n for tokens in passes for n in tokens.to_row()]} for step in range(steps)}
    return token_doubled.check(write_run(tmp_path, rows))


def written(begin=(BEGIN,), end=(END,)):
    return [[*begin, *text, *end] for text in TEXTS]


def test_numbers_are_those_of_the_rows():
    tokens = passed(written(begin=(BEGIN, BEGIN)), side="left")
    first = {"first": BEGIN, "first_rows": 4, "first_doubled": 4, "first_reads": 8, "first_pairs": 4}
    last = {"last": END, "last_rows": 4, "last_doubled": 0, "last_reads": 4, "last_pairs": 0}
    assert dataclasses.asdict(tokens) == {"rows": 4, **first, **last, "left": 3, "right": 0}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_begin_token_that_stands_twice_is_found(tmp_path, side):
    (finding,) = found_in(tmp_path, passed(written(begin=(BEGIN, BEGIN)), side=side))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "beginning")
    assert finding.claim == "Token 1 stands twice at the beginning of 32 of 32 rows, and hardly anywhere alone."


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_end_token_that_stands_twice_is_found(tmp_path, side):
    (finding,) = found_in(tmp_path, passed(written(end=(END, END)), side=side))
    assert finding.claim.startswith("Token 2 stands twice at the end of 32 of 32 rows")


def test_packed_rows_with_doubled_tokens_are_found(tmp_path):
    packed = [[token for text in written(begin=(BEGIN, BEGIN)) for token in text]] * 4
    assert [finding.evidence["kind"] for finding in found_in(tmp_path, passed(packed))] == ["beginning"]


@pytest.mark.parametrize(
    "tokens",
    [
        passed(written()),
        passed(written(), side="left"),
        passed(written(), side="left", mask=False),  # padding that no mask tells of
        passed(written(), mask=False),
        passed(written(begin=(BEGIN, 7, BEGIN))),
        passed(written(begin=(BEGIN, BEGIN, BEGIN))),
        passed([[7, 7, *text, 7, 6] for text in TEXTS]),  # a word
        passed([*written(begin=(BEGIN, BEGIN))[:2], *written()[2:]]),
        passed([[9, 9, 5, 6]] + [[8, 5, 6, 7]] * 3),
    ],
)
def test_healthy_rows_are_silent(tmp_path, tokens):
    assert found_in(tmp_path, tokens) == []


def test_few_rows_tell_nothing(tmp_path):
    with pytest.raises(CannotTell, match="fewer than 16 rows"):
        found_in(tmp_path, passed(written(begin=(BEGIN, BEGIN))), steps=2)


def test_rows_of_another_version_are_left_out():
    assert EdgeTokens.from_row([1, 2, 3]) == ()
