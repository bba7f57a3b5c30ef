"""Statistics of a trainer's logits for the laws of rollouts: entropy, varentropy and the like, a few rows at a time.

N tokens, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1024
"""Tokens whose distributions are in memory at once: at 150,000 words 600 MB in float32."""


@dataclass(frozen=True)
class TokenStatistics:
    """Each [N] float32, of the distribution before each token: its log-probability ``logp``, ``entropy`` H = -sum p log
    p, ``varentropy`` sum p (log p + H)², the probability ``mass_above`` of words likelier than it and their number
    ``words_above``; ``top`` [N, 2] int64 the two likeliest words, ``logp_top`` the log-probability of the first, and
    ``odds`` the log-odds of the first against the second of ``pair``, by default these.
    """

    logp: Tensor
    entropy: Tensor
    varentropy: Tensor
    mass_above: Tensor
    top: Tensor
    odds: Tensor
    logp_top: Tensor
    words_above: Tensor

    @property
    def top_train(self) -> Tensor:
        """[N] the likeliest word, as ``rl.record`` takes it."""
        return self.top[..., 0]


@torch.no_grad()
def of_logits(
    logits_NV: Tensor, ids_N: Tensor, *, temperature: float = 1.0, pair: Tensor | None = None
) -> TokenStatistics:
    """The statistics of tokens ``ids_N`` under ``logits_NV / temperature``, worked out in float32.

    Leading dimensions may be several and are kept; ``pair`` [N, 2] are the words whose log-odds are wanted, as the two
    likeliest of the rollout engine.
    """
    shape = ids_N.shape
    ids = ids_N.detach().reshape(-1)
    pairs = None if pair is None else pair.detach().reshape(-1, 2)
    parts: list[tuple[Tensor, ...]] = []
    start = 0
    for rows in _rows(logits_NV.detach()):
        row_slice = slice(start, start := start + len(rows))
        pair_rows = None if pairs is None else pairs[row_slice]
        parts.append(_chunk(rows.float() / temperature, ids[row_slice], pair_rows))
    logp, entropy, varentropy, mass, top, odds, logp_top, words = (
        map(torch.cat, zip(*parts, strict=True)) if parts else (logits_NV.new_zeros(0) for _ in range(8))
    )
    return TokenStatistics(
        *(statistic.reshape(shape) for statistic in (logp, entropy, varentropy, mass)),
        top=top.reshape(*shape, 2),
        odds=odds.reshape(shape),
        logp_top=logp_top.reshape(shape),
        words_above=words.reshape(shape),
    )


def _rows(logits: Tensor) -> Iterator[Tensor]:
    """Views of at most ``CHUNK`` distributions; those of a slice of the positions are not copied either."""
    try:
        yield from (rows for rows in logits.view(-1, logits.shape[-1]).split(CHUNK) if len(rows))
    except RuntimeError:  # no view of several sequences
        for sequence_logits in logits:
            yield from _rows(sequence_logits)


def _chunk(logits_NV: Tensor, ids_N: Tensor, pair_N2: Tensor | None) -> tuple[Tensor, ...]:
    log_NV = torch.log_softmax(logits_NV, -1)
    p_NV = log_NV.exp()
    finite_NV = torch.where(p_NV > 0, log_NV, torch.zeros_like(log_NV))  # 0 log 0 = 0
    entropy = -(p_NV * finite_NV).sum(-1)
    varentropy = (p_NV * (finite_NV + entropy[:, None]).square()).sum(-1)
    logp = log_NV.gather(-1, ids_N[:, None])[:, 0]
    is_above_NV = log_NV > logp[:, None]
    mass, words = (p_NV * is_above_NV).sum(-1), is_above_NV.sum(-1).float()
    top_log, top = log_NV.topk(2, -1)
    pair_log_N2 = top_log if pair_N2 is None else log_NV.gather(-1, pair_N2)
    return logp, entropy, varentropy, mass, top, pair_log_N2[:, 0] - pair_log_N2[:, 1], top_log[:, 0], words
