"""Template, tokenizer, labels and padding of the demo."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from trueline.demo.corpus import Triple
from trueline.demo.tokens import (
    IGNORED,
    PaddingCollator,
    Tokenizer,
    encode_triple,
    prompt_text,
    train_tokenizer,
)

TRIPLES = [Triple(f"Write number {n}.", f"n = {n}", f"The number is {n}, and é.") for n in range(50)]


def letters(start_id=None):
    """A tokenizer of one token a character, so that counts can be done by hand."""
    return Tokenizer(
        encode=lambda text: [ord(char) for char in text], start_id=start_id, end_id=1, pad_id=0, vocab_size=9
    )


def test_the_prompt_has_the_three_parts_and_leaves_out_an_empty_input():
    asked = prompt_text(Triple("Do it.", "to this", "done"))
    assert asked == "### Instruction:\nDo it.\n\n### Input:\nto this\n\n### Response:\n"
    assert prompt_text(Triple("Do it.", "", "done")) == "### Instruction:\nDo it.\n\n### Response:\n"


def test_the_loss_is_on_the_response_and_its_end_only():
    triple = Triple("Do it.", "", "done")
    sample = encode_triple(triple, letters(start_id=2), max_length=1024)
    counted = sample.labels != IGNORED
    assert sample.input_ids[0] == 2
    assert list(sample.input_ids[counted]) == [*map(ord, "done"), 1]
    assert list(sample.labels[counted]) == list(sample.input_ids[counted])
    assert list(sample.input_ids[1:][~counted[1:]]) == [ord(char) for char in prompt_text(triple)]


@pytest.mark.parametrize(("asked", "answer"), [(4, 200), (200, 4), (200, 200), (4, 4)])
def test_a_sample_never_exceeds_the_limit_and_always_has_response_tokens(asked, answer):
    sample = encode_triple(Triple("q" * asked, "", "a" * answer), letters(), max_length=64)
    counted = sample.labels != IGNORED
    assert len(sample.input_ids) == len(sample.labels) <= 64
    assert counted.sum() >= 1
    assert not counted[0]
    if asked == 200:
        assert bytes(sample.input_ids[~counted].astype(np.uint8)).endswith(b"### Response:\n")
    if answer == 4:
        assert sample.input_ids[-1] == 1


def test_the_vocabulary_is_learned_within_its_size_and_encodes_every_byte():
    tokenizer = train_tokenizer(TRIPLES, vocab_size=300)
    assert 258 < tokenizer.vocab_size <= 300
    assert max(tokenizer.encode("\x00\U0001f600 anything at all\n")) < tokenizer.vocab_size
    assert len(tokenizer.encode("### Instruction:")) < 16


def test_special_tokens_written_in_the_data_stay_text():
    tokenizer = train_tokenizer([*TRIPLES, Triple("<end>", "<pad>", "<end>")], vocab_size=300)
    ids = tokenizer.encode("a <end> of <pad>")
    assert tokenizer.end_id not in ids
    assert tokenizer.pad_id not in ids


def test_equal_triples_give_equal_tokens_in_another_process():
    script = (
        "from trueline.demo.corpus import Triple\n"
        "from trueline.demo.tokens import train_tokenizer\n"
        "triples = [Triple(f'Write number {n}.', f'n = {n}', f'The number is {n}, and é.') for n in range(50)]\n"
        "print(train_tokenizer(triples, vocab_size=290).encode('The number is 7, and é. Write n = 3'))\n"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert outputs == {f"{train_tokenizer(TRIPLES, vocab_size=290).encode('The number is 7, and é. Write n = 3')}\n"}


def test_a_batch_is_padded_at_the_end_and_padding_counts_nowhere():
    triples = [Triple("a", "", "bcd"), Triple("longer", "one", "x")]
    samples = [encode_triple(triple, letters(), max_length=1024) for triple in triples]
    batch = PaddingCollator(pad_id=0)(samples)
    lengths = [len(sample.input_ids) for sample in samples]
    assert {name: tuple(x.shape) for name, x in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (2, max(lengths))
    )
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    for row, sample in enumerate(samples):
        num_tokens = lengths[row]
        assert batch["input_ids"][row, :num_tokens].tolist() == sample.input_ids.tolist()
        assert batch["labels"][row, :num_tokens].tolist() == sample.labels.tolist()
        assert set(batch["labels"][row, num_tokens:].tolist()) <= {IGNORED}
        assert set(batch["input_ids"][row, num_tokens:].tolist()) <= {0}
