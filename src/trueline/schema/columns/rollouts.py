"""The tables of reinforcement learning: ``rollouts``, one row per sequence that a rollout engine sampled, or per step
of a log that has means alone, and ``syncs``, one row per parameter each time weights were handed to the engine.

``None`` means not measured, never zero. In lists of tokens NaN means the same. Log-probabilities are natural
logarithms.

Letters: P prompt tokens, L response tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueline.schema.column import Column
from trueline.schema.text.words import counted

TableName = Literal["rollouts", "syncs"]

SAMPLING: tuple[str, ...] = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("bad_words", "allowed_token_ids", "min_tokens", "logit_bias", "structured_outputs"),
    *("lag", "dtype", "vocabulary", "engine"),
)
"""What may be declared of how rollouts were sampled, and of the two sides."""
MISFIT = re.compile(r"^(\w+) has ([\d,]+) (value|sequence)s? (?:for|of) ([\d,]+)\b")
"""A note of a sequence of which a list has another length than there are tokens, or a column another than sequences."""


def misfit(name: str, number: int, tokens: int) -> str:
    """The note of a list of ``number`` values where there are so many ``tokens``."""
    return f"{name} has {counted(number, 'value')} for {counted(tokens, 'token')}"


_IDENTITY: tuple[Column, ...] = (
    Column("step", "int64", "optimizer steps", "Step of the trainer, from 0, that the row belongs to."),
    Column("rank", "int32", "", "Global rank of the trainer that recorded it."),
    Column("row", "int32", "", "Order within this step on this rank, from 0."),
)
ROLLOUT_COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    Column("prompt_ids", "list<int32>", "", "[P] token ids that the engine was given."),
    Column("response_ids", "list<int32>", "", "[L] token ids that the engine sampled."),
    Column("train_prompt_ids", "list<int32>", "", "Token ids of the prompt as the trainer has them, where it said so."),
    Column("train_response_ids", "list<int32>", "", "Token ids of the response as the trainer has them."),
    Column("mask", "list<int32>", "", "[L] 1 where the engine sampled the token, 0 where it was forced (a tool's)."),
    Column("logp_rollout", "list<float32>", "nats", "[L] log-probability that the engine recorded of each token."),
    Column("logp_train", "list<float32>", "nats", "[L] that of the trainer, for the same tokens."),
    Column("logp_update", "list<float32>", "nats", "[L] the same once more: in the update, before it changed weights."),
    Column("entropy", "list<float32>", "nats", "[L] entropy of the trainer's distribution before each token."),
    Column("varentropy", "list<float32>", "nats²", "[L] variance of -log p under that distribution."),
    Column("odds_rollout", "list<float32>", "nats", "[L] log-odds of two tokens, as of the engine's two likeliest."),
    Column("odds_train", "list<float32>", "nats", "[L] the trainer's log-odds of the same two."),
    Column("mass_above", "list<float32>", "", "[L] the trainer's probability of tokens likelier than the sampled one."),
    Column("words_above", "list<float32>", "tokens", "[L] how many tokens the trainer thinks likelier than this one."),
    Column("top_train", "list<int32>", "", "[L] the token that the trainer thinks likeliest."),
    Column("logp_top", "list<float32>", "nats", "[L] the trainer's log-probability of it."),
    Column("experts_differ", "list<float32>", "layers", "[L] layers in which the two sides chose other experts."),
    Column("slots_differ", "list<float32>", "layers", "[L] layers with the same experts in other slots."),
    Column("slots_misread", "list<float32>", "layers", "[L] of these, ones whose weights stayed with the slots."),
    Column("routed_layers", "int64", "layers", "Layers with experts that were recorded of one side at least."),
    Column("version_rollout", "int64", "", "Version of the weights that sampled it."),
    Column("version_train", "int64", "", "Version of the weights that gave logp_train."),
    Column("sampling", "string", "", "JSON of what was declared: temperature, top_p, top_k, lag, engine, dtype, …"),
    Column("reward", "float64", "", "The reward that was trained on."),
    Column("reward_again", "float64", "", "The reward of the same text scored once more."),
    Column("advantage", "float64", "", "The advantage that was trained on."),
    Column("group", "int64", "", "Sequences of one prompt have one number (GRPO)."),
    Column("tokens", "int64", "tokens", "Of a log of means: how many tokens they are over."),
    Column("mean_diff", "float64", "nats", "Of a log of means: logp_rollout - logp_train (the estimator k1)."),
    Column("mean_k3", "float64", "nats", "Of a log of means: exp(-d) - 1 + d with d as in mean_diff."),
    Column("mean_abs_diff", "float64", "nats", "Of a log of means: |d|."),
    Column("note", "string", "", "What of the sequence could not be taken, and why."),
)
SYNC_COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    Column("name", "string", "", "Parameter, by the engine's name."),
    Column("version", "int64", "", "Version of the weights that were handed over."),
    Column("digest_train", "uint64", "", "Digest of the trainer's values, in the engine's layout and dtype."),
    Column("digest_rollout", "uint64", "", "Digest of the engine's values."),
    Column("numel_train", "int64", "elements", "Elements that the trainer has of it."),
    Column("numel_rollout", "int64", "elements", "Elements that the engine has of it."),
    Column("dtype", "string", "", "dtype of the engine's values, to which the trainer's were cast."),
    Column(
        "gap", "float64", "", "Norm of the difference over that of the trainer's values; None where not comparable."
    ),
    Column("digest_adapter", "uint64", "", "Digest of adapters that change it visibly; None where it has none."),
    Column(
        "adapter_scale", "float64", "", "Scale of B A that fits best; 0 where the engine has it without the adapter."
    ),
    Column("note", "string", "", "Why it could not be compared."),
)
TABLE_COLUMNS: Mapping[TableName, tuple[Column, ...]] = {"rollouts": ROLLOUT_COLUMNS, "syncs": SYNC_COLUMNS}


@dataclass(frozen=True)
class Lists:
    """R lists one after the other: list i is ``values[ends[i - 1] : ends[i]]``, and ``ends_R1`` int32 begins with 0.
    ``absent_R`` bool: there is none.
    """

    values: NDArray[Any]
    ends_R1: NDArray[np.int32]
    absent_R: NDArray[np.bool_]

    @classmethod
    def of(cls, lists: Sequence[NDArray[Any] | None], dtype: Any) -> Lists:
        """The lists one after the other, None for one that there is not."""
        absent = np.array([values is None for values in lists], dtype=np.bool_)
        no_values: NDArray[Any] = np.zeros(0, dtype)
        present: list[NDArray[Any]] = [no_values if values is None else np.asarray(values, dtype) for values in lists]
        ends = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(values) for values in present], out=ends[1:])
        return cls(np.concatenate([no_values, *present]), ends, absent)


@dataclass(frozen=True)
class TableRows:
    """R rows of ``table`` that belong to ``step``: columns without ``step``, ``rank`` and ``row``; one that is left out
    is None throughout. A Sink may be given several for one step.
    """

    table: TableName
    step: int
    num_rows: int
    columns: Mapping[str, Lists | Sequence[Any]]
