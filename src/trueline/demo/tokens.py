"""From triples to batches: a byte-level BPE, the Instruction-Input-Response template, and padding.

Letters: B samples of a batch, L tokens of its longest sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueline.demo.corpus import Triple

if TYPE_CHECKING:
    import torch

VOCAB_SIZE = 2048
MIN_LENGTH = 16
"""Fewest tokens a sample may be limited to: half of it is then a response of a few words."""

IGNORED = -100
"""Label of a token that does not count in the loss (the default `ignore_index` of torch's cross entropy)."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The four things that a batch needs of a tokenizer, ours or a pretrained one.

    ``encode`` adds no special token; ``start_id`` is None where the model wants none; ``vocab_size`` counts them all.
    """

    encode: Callable[[str], list[int]]
    start_id: int | None
    end_id: int
    pad_id: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One triple as tokens: int64 ``[L]`` ids, and labels that are -100 (no loss) outside of the response."""

    input_ids: np.ndarray
    labels: np.ndarray


def prompt_text(triple: Triple) -> str:
    """What stands before the response; the Input part is left out where the triple has none."""
    instruction = f"### Instruction:\n{triple.instruction}\n\n"
    about = f"### Input:\n{triple.input}\n\n" if triple.input else ""
    return f"{instruction}{about}### Response:\n"


def train_tokenizer(triples: Sequence[Triple], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A byte-level BPE of at most ``vocab_size`` tokens learned from ``triples``; equal triples give equal tokens."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((prompt_text(triple) + triple.output for triple in triples), trainer=trainer)
    bpe.encode_special_tokens = True  # a literal "<end>" in someone's data is text, not the end

    def encode(text: str) -> list[int]:
        return bpe.encode(text).ids

    return Tokenizer(encode=encode, start_id=None, end_id=1, pad_id=0, vocab_size=bpe.get_vocab_size())


def encode_triple(triple: Triple, tokenizer: Tokenizer, *, max_length: int) -> Sample:
    """The Sample of ``triple`` within ``max_length`` tokens.

    The prompt has at least half of the room: a longer response loses its end, a prompt still too long its beginning,
    so that every sample has response tokens to learn from (a batch without any has the loss NaN).
    """
    start = [] if tokenizer.start_id is None else [tokenizer.start_id]
    prompt = start + tokenizer.encode(prompt_text(triple))
    response = [*tokenizer.encode(triple.output), tokenizer.end_id]
    response = response[: max(max_length - len(prompt), max_length // 2)]
    prompt = prompt[max(0, len(prompt) + len(response) - max_length) :]
    ids = np.array(prompt + response, dtype=np.int64)
    labels = ids.copy()
    labels[: len(prompt)] = IGNORED
    return Sample(input_ids=ids, labels=labels)


@dataclass(frozen=True, slots=True)
class PaddingCollator:
    """Samples to a batch of int64 ``[B, L]`` tensors: ``input_ids``, ``attention_mask`` (0 on padding), ``labels``."""

    pad_id: int

    def __call__(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """The batch of ``samples``, padded at the end to the longest of them."""
        import torch

        length = max(len(sample.input_ids) for sample in samples)
        ids_BL = np.full((len(samples), length), self.pad_id, dtype=np.int64)
        mask_BL = np.zeros_like(ids_BL)
        labels_BL = np.full_like(ids_BL, IGNORED)
        for row, sample in enumerate(samples):
            num_tokens = len(sample.input_ids)
            ids_BL[row, :num_tokens] = sample.input_ids
            mask_BL[row, :num_tokens] = 1
            labels_BL[row, :num_tokens] = sample.labels
        arrays: dict[str, Any] = {"input_ids": ids_BL, "attention_mask": mask_BL, "labels": labels_BL}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
