"""A hook on the layer that makes logits: what the laws of rollouts need is worked out of them as they are made, so that
a trainer that keeps log-probabilities alone need not keep logits.

B sequences, L tokens of a response, K positions that the layer is called for, V words of the vocabulary.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.untraced import Hook, in_backward
from trueline.rl.logits import TokenStatistics, of_logits
from trueline.schema.errors import InputError
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.words import counted

_log = SafeLogger()


class ReadLogits:
    """Reads the logits of the calls of ``module`` while it is entered: see ``trueline.rl.read_logits``.

    Of responses ``ids_BL``, in the order of the calls: ``logp``, ``entropy``, ``varentropy``, ``mass_above``,
    ``words_above``, ``odds``, ``logp_top`` [B, L] float32, ``top_train`` [B, L] and ``top`` [B, L, 2] int64, as of
    ``trueline.rl.of_logits``; None where the logits of some were not seen.
    """

    def __init__(self, module: nn.Module, ids_BL: Tensor, *, temperature: float, pair_BL2: Tensor | None) -> None:
        if not isinstance(module, nn.Module):
            raise InputError(f"rl.read_logits was given {type(module).__name__}, not a module: pass model.lm_head.")
        if ids_BL.ndim != 2:
            raise InputError(f"response_ids have shape {tuple(ids_BL.shape)}, expected [sequences, tokens].")
        self._module, self._ids, self._pair, self._temperature = module, ids_BL, pair_BL2, temperature
        self._parts: list[TokenStatistics] = []
        self._num_seen = 0
        self._handle: Any = None

    def __enter__(self) -> ReadLogits:
        self._handle = self._module.register_forward_hook(Hook(self._take))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handle is None:
            return
        self._handle.remove()
        if kind is None and self._num_seen != len(self._ids):
            sequences = counted(len(self._ids), "sequence")
            self._lets_go(f"logits of {self._num_seen} of {sequences} were made by this module")

    @property
    def logp(self) -> Tensor | None:
        """Log-probability of each token, in nats."""
        return self._whole("logp")

    @property
    def entropy(self) -> Tensor | None:
        """Entropy of the distribution before each token, in nats."""
        return self._whole("entropy")

    @property
    def varentropy(self) -> Tensor | None:
        """Variance of -log p under that distribution, in nats²."""
        return self._whole("varentropy")

    @property
    def mass_above(self) -> Tensor | None:
        """Probability of words likelier than the token."""
        return self._whole("mass_above")

    @property
    def words_above(self) -> Tensor | None:
        """Number of words likelier than the token."""
        return self._whole("words_above")

    @property
    def top(self) -> Tensor | None:
        """The two likeliest words."""
        return self._whole("top")

    @property
    def odds(self) -> Tensor | None:
        """Log-odds of the first against the second of ``pair``, or of the two likeliest."""
        return self._whole("odds")

    @property
    def top_train(self) -> Tensor | None:
        """The likeliest word, as ``rl.record`` takes it."""
        return self._whole("top_train")

    @property
    def logp_top(self) -> Tensor | None:
        """Log-probability of the likeliest word, in nats."""
        return self._whole("logp_top")

    def _whole(self, name: str) -> Tensor | None:
        if not self._parts or self._num_seen != len(self._ids):
            return None
        return torch.cat([getattr(part, name) for part in self._parts])

    def _take(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A call has returned; never raises. One in backward is that of a checkpoint, once more."""
        del module, args
        if self._handle is None or in_backward():
            return
        try:
            self._add_statistics(output if isinstance(output, Tensor) else output.logits)
        except Exception as error:
            self._lets_go(f"{type(error).__name__}: {error}")

    def _add_statistics(self, logits_BKV: Tensor) -> None:
        num, length = len(logits_BKV), self._ids.shape[1]
        rows = slice(self._num_seen, self._num_seen + num)
        ids = self._ids[rows].to(logits_BKV.device)
        if logits_BKV.ndim != 3 or len(ids) != num or logits_BKV.shape[1] < length:
            raise InputError(
                f"logits have shape {tuple(logits_BKV.shape)}, expected [sequences, positions, words] of "
                f"{len(self._ids) - self._num_seen} more sequences with {length} positions or more"
            )
        # Logits at a position are of the next token: those of a response begin one position before it.
        more = logits_BKV.shape[1] - length
        before = logits_BKV[:, more - 1 : -1] if more else logits_BKV
        pair = None if self._pair is None else self._pair[rows].to(logits_BKV.device)
        self._parts.append(of_logits(before, ids, temperature=self._temperature, pair=pair))
        self._num_seen += num

    def _lets_go(self, says: str) -> None:
        self._handle.remove()
        self._parts, self._handle = [], None
        _log.warning("trueline: rl.read_logits has no statistics: %s. Training goes on.", says.rstrip("."))
