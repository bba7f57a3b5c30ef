"""Which tokens of a response stood before it, in the prompt or earlier in the response: what a penalty on repetition
depends on.

N tokens of R sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""Id of a token that was not recorded."""
_IDS = 1 << 32
"""More than there are ids, so that a sequence and an id are one number."""


@dataclass(frozen=True)
class SeenTokens:
    """Of [N] tokens of responses, which are read as somebody asks: of two engines that agree nobody does. ``read_ids``
    has a column of ids, ``NONE`` where unknown, ``read_prompts`` the tokens of the prompts as ``keys_of`` has them.
    """

    read_ids: Callable[[str], Ints]
    read_prompts: Callable[[], Ints]
    sequence: Ints
    position: Ints

    @cached_property
    def ids(self) -> Ints:
        """[N] the tokens."""
        return self.read_ids("response_ids")

    @cached_property
    def tops(self) -> Ints:
        """[N] the trainer's likeliest in their place."""
        return self.read_ids("top_train")

    @cached_property
    def again(self) -> Bools:
        """[N] the token was sampled earlier in the same response."""
        return self._is_before(self.ids)

    @cached_property
    def fresh(self) -> Bools:
        """[N] the token stands neither in the prompt nor earlier in the response."""
        return (self.ids != NONE) & ~self.again & ~self._is_in_prompt(self.ids)

    @cached_property
    def top_again(self) -> Bools:
        """[N] the likeliest token was sampled earlier in the same response."""
        return self._is_before(self.tops)

    @cached_property
    def top_fresh(self) -> Bools:
        """[N] the likeliest token stands neither in the prompt nor earlier in the response."""
        return (self.tops != NONE) & ~self.top_again & ~self._is_in_prompt(self.tops)

    @property
    def is_top(self) -> Bools:
        """[N] the trainer's likeliest token was sampled."""
        return (self.ids == self.tops) & (self.tops != NONE)

    def _is_before(self, ids_N: Ints) -> Bools:
        if not len(ids_N) or not (ids_N != NONE).any():
            return np.zeros(len(ids_N), np.bool_)
        keys, first = self._first_of_response
        wanted = keys_of(self.sequence, ids_N)
        at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        return (ids_N != NONE) & (keys[at] == wanted) & (self.position[first[at]] < self.position)

    def _is_in_prompt(self, ids_N: Ints) -> Bools:
        return np.isin(keys_of(self.sequence, ids_N), self._prompt_keys)

    @cached_property
    def _prompt_keys(self) -> Ints:
        return self.read_prompts()

    @cached_property
    def _first_of_response(self) -> tuple[Ints, Ints]:
        """Each token of a response once, ascending, and the index of the first."""
        keys, first = np.unique(keys_of(self.sequence, self.ids), return_index=True)
        return keys, first


def keys_of(sequence_N: Ints, ids_N: Ints) -> Ints:
    """[N] one number for an id in a sequence."""
    return sequence_N * _IDS + ids_N
