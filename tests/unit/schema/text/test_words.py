"""Sentences agree with what they count, whether it is none, one, two or many."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

import trueline
from trueline.schema.text.words import (
    clipped,
    listed,
    named_some,
    of_one_process,
    of_ranks,
    ranks_text,
    steps_text,
    whose_text,
)

SOURCE = Path(trueline.__file__).parent
BROKEN = re.compile(
    r"[,;:]{2}|[,;:]\.(?!\w)|(?<!\.)\.[,;]|(?<![./])\.\.(?![./])| [,;](?!\w)|[a-z,;] {2,}[a-z]|\b([A-Za-z]+) \1\b"
)
"""Doubled punctuation, a blank before it, two blanks, a word twice."""
ONE_OR_MORE = re.compile(r"(?:len\(.*\)|.*\bnum_\w+|.*\bcount|.*\.size)(?::,)?")
"""What is filled in is how many there are; what may be one is written with ``counted``."""
PLURAL = re.compile(r" (?:other |equal |recorded |such )?([a-z]+[a-rt-z]s)\b")


MANY = {
    "capture/trial/faults/settings.py len(parts) modules",
    "trials/drill/drill.py asked.num_steps steps",
    "laws/replicas/buffers_overwritten.py len(steps) steps",
    "judge/facts/model.py len(names) names",
    "laws/initial_values/init_differs.py first.num_peers other layers",
    "laws/initial_values/load_missed.py load.num_tensors tensors",
    "trials/repeat/repeat.py num_repeats repeats",
    "laws/rollouts/policy_lag.py len(rows) sequences",
    "laws/rollouts/reward_differs.py len(reward) sequences",
    "laws/token_weights/loss_scale_wrong.py fault.num_left_out updates",
    "laws/token_weights/loss_scale_wrong.py num_ranks ranks",
    "laws/schedule/schedule_differs.py schedule.num_epochs epochs",
    "laws/terms/chance.py num_classes classes",
    "laws/terms/classes.py num_classes classes",
    "comparison/calibrate.py len(alignment.pairs) recorded values",
    "laws/unlike_workers/dispersion_high.py len(members) workers",
    "laws/unlike_workers/copies.py len(members) workers",
    "laws/unlike_workers/dispersion_low.py len(rows) steps",
    "laws/data_split/duplicate_data.py len(declared.by_rank) workers",
    "laws/data_split/held_out_trained.py part.size indices",
    "laws/data_split/held_out_trained.py source.size samples",
    "laws/overflow/grad_explosion.py growth.num_layers layers",
    "laws/data_split/shard_overlap.py len(samples.ranks) parts",
    "laws/token_weights/token_imbalance.py len(members) workers",
    "comparison/compare.py len(arrangements) recorded steps",
    "comparison/match/gather.py len(ranks) ranks",
    "comparison/match/unmatched.py len(run_names) modules",
    "comparison/merge/shards.py len(wholes) terms",
    "laws/unlike_workers/outliers.py num_workers workers",
    "comparison/expect/rounding.py num_workers terms",
    "comparison/expect/rounding.py num_terms terms",
    "comparison/expect/rounding.py num_terms vectors",
    "judge/run_verdict.py len(incidents) incidents",
    "capture/adapters/sharded.py len(mesh.members) ranks",
    "capture/model/layout.py len(trainable) parameters",
    "capture/record/make_session.py len(names) modules",
    "cli/verbs/info.py len(names) columns",
    "compat/msprobe/config.py len(scope) names",
    "compat/msprobe/name_globs.py len(modules) modules",
    "demo/fine_tune.py len(samples) triples",
    "demo/fine_tune.py len(triples) triples",
    "schema/stats.py len(parts) shards",
    "schema/files/tolerance.py len(self.loss_steps) steps",
    "schema/files/tolerance.py len(floors) floors",
    "schema/files/tolerance.py len(self.steps) steps",
    "store/attempts.py len(before) parameters",
    "store/importers/safetensors.py len(indices) indices",
    "store/importers/safetensors.py len(shards) files",
    "store/log/journal.py num_bytes bytes",
    "store/log/journal.py len(body) bytes",
    "store/log/parts.py len(data) bytes",
    "store/log/parts.py file.metadata.num_rows rows",
    "store/query.py len(words) statements",
    "store/records/record_summary.py len(steps) steps",
    "store/records/step_parts.py num_rows rows",
    "store/records/stack_files.py len(data) bytes",
    "store/records/stack_files.py file.metadata.num_rows rows",
    "store/records/tensor_files.py len(bits) bytes",
    "tensor/sketch.py count signs",
    "render/comparison/compare_story.py count values",
    "render/report/finding_row.py len(ranks) ranks",
    "schema/text/words.py len(ordered) steps",
    "schema/text/words.py len(rank_set) ranks",
    "render/comparison/compare_story.py len(calls) modules",
    "trials/op/stand_alone.py len(calls) operations",
}
"""Counts that are never one where the sentence is said, or that are of bytes and of a whole of which some are named."""


@functools.cache
def templates():
    """(file:line, node) of every text of ours with a place to fill in."""
    return [
        (f"{path.relative_to(SOURCE)}:{node.lineno}", node)
        for path in sorted(SOURCE.rglob("*.py"))
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
    ]


def filled_in(node):
    """The text with a word of its own at each place."""
    parts = [part.value if isinstance(part, ast.Constant) else f"X{place}" for place, part in enumerate(node.values)]
    return "".join(map(str, parts)).strip()


def counts_of_many(node):
    """Each place that holds a number of things, with the plural behind it."""
    for part, after in itertools.pairwise(node.values):
        if isinstance(part, ast.FormattedValue) and isinstance(after, ast.Constant):
            plural = PLURAL.match(str(after.value))
            if plural and ONE_OR_MORE.fullmatch(ast.unparse(part.value)):
                yield f"{ast.unparse(part.value)}{plural[0]}"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((0, 1), "ranks 0 and 1"),
        ((0, 1, 2, 3, 5), "ranks 0-3 and 5"),
        ((4, 2, 0), "ranks 0, 2 and 4"),
        ((), ""),
    ],
)
def test_ranks_in_words(ranks, text):
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("steps", "among", "text"),
    [
        ([5], None, "step 5"),
        (range(50), None, "steps 0-49"),
        ([3, 7, 9], None, "steps 3, 7 and 9"),
        ([0, 10, 20, 30], range(0, 50, 10), "steps 0-30"),
        ([0, 10, 30], range(0, 50, 10), "steps 0, 10 and 30"),
        ([1, 3, 5, 7, 9], None, "5 steps between 1 and 9"),
    ],
)
def test_steps_in_words(steps, among, text):
    assert steps_text(steps, among=among) == text


def test_lists_in_words():
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert named_some(["a", "b", "c", "d"]) == "a, b, c and 1 more"


def test_all_ranks_of_three_or_more_are_not_listed():
    assert ranks_text(range(8), all_ranks=range(8)) == "all 8 ranks"
    assert ranks_text((0, 1), all_ranks=(0, 1)) == "ranks 0 and 1"
    assert ranks_text((0, 1, 2, 5), all_ranks=range(8), dash="–") == "ranks 0–2 and 5"


def test_long_text_is_clipped_to_its_length() -> None:
    assert clipped("abcdef", 6) == "abcdef"
    assert clipped("abcdefg", 6) == "abcde…"


def test_no_sentence_has_doubled_punctuation_or_a_word_twice():
    broken = [(where, filled_in(node)) for where, node in templates() if BROKEN.search(filled_in(node))]
    assert [each for each in broken if not any(code in each[1] for code in ("default-src", "title="))] == []


def test_every_count_that_may_be_one_agrees_with_its_noun():
    found = {f"{where.split(':')[0]} {many}" for where, node in templates() for many in counts_of_many(node)}
    assert found - MANY == set()
    assert MANY - found == set()


@pytest.mark.parametrize(
    ("ranks", "loss", "both"),
    [
        ((3,), "the loss of rank 3 is", "the loss and the gradient of rank 3 are"),
        ((0, 1), "the losses of ranks 0 and 1 are", "the loss and the gradient of ranks 0 and 1 are"),
        (range(6), "the losses of ranks 0-5 are", "the loss and the gradient of ranks 0-5 are"),
    ],
)
def test_what_ranks_have_agrees_with_how_many_they_are(ranks, loss, both):
    assert of_ranks(["loss"], ranks) == loss
    assert of_ranks(["loss", "gradient"], ranks) == both


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 1000])
@pytest.mark.parametrize("apart", [1, 3])
def test_ranks_steps_and_places_are_well_formed_for_any_number(count, apart):
    numbers = range(0, count * apart, apart)
    for text in (ranks_text(numbers), steps_text(numbers), whose_text(tuple(numbers), 5, count)):
        assert not BROKEN.search(text)
        assert ("ranks" in text or "steps" in text) == (count > 1)


@pytest.mark.parametrize(
    ("sentence", "of_one"),
    [
        ("The loss of rank 0 is NaN.", "The loss is NaN."),
        ("Rank 0 reads each batch twice.", "The process reads each batch twice."),
        ("Since step 14 on rank 0, and was not before", "Since step 14, and was not before"),
        ("They are as drawn (rank 0).", "They are as drawn."),
        ("1/4 of the mean (rank 0, steps 0-66).", "1/4 of the mean (steps 0-66)."),
        ("1/4 of the mean (steps 0-66, rank 0).", "1/4 of the mean (steps 0-66)."),
        ("Print what rank 0's loader yields.", "Print what the process's loader yields."),
        ("An adapter of rank 8 is frozen on rank 0: it stays.", "An adapter of rank 8 is frozen: it stays."),
        ("Nothing of ranks 0 and 1 changes.", "Nothing of ranks 0 and 1 changes."),
    ],
)
def test_one_process_has_no_number(sentence, of_one):
    assert of_one_process(sentence) == of_one
