"""Norms and linear sketches of many gradients at once, in two passes over memory and few calls, without a copy of them.

Letters: P parameters, G groups, k sketch length, W shards (1 for whole tensors), C elements of one shard, R rows of
k.

The sketch of x multiplies each row of k consecutive elements with one random sign and adds the rows up. What does not
fill a row (tails, and small parameters whole) is laid side by side in one vector per group, every parameter in a
place of its own, and sketched in the same way. It is linear in x, E[sketch(a)·sketch(b)] = a·b, and the standard
error of a cosine c from self-normalised sketches is (1 - c²)/√k, measured on real gradients (docs: The maths). k must
be prime: at k = 4,096 rows line up with weight rows and the error is 3 to 7 times larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

BLOCK_ROWS = 1024
"""Rows that are added up in float32 before float64 takes over: a signed sum of n terms has a rounding error of about
2⁻²⁴·√(n/2) of its norm."""

SMALL = 4096
"""Parameters of up to so many elements are sketched together with the tails: one call for all of them."""

NORM_CHUNK = 65_536
"""Elements whose squares are added in float32; across chunks in float64. Relative error of the square below 1e-6 for
float32 and 1e-5 for 16-bit gradients (tests/unit/test_tensor_sketch.py), where a flat float32 norm over 9M elements is
wrong by 1e-3 (docs: The maths)."""

LENGTHS: tuple[int, ...] = (4099, 2053, 1031, 521)
"""Primes near the powers of two; the more groups, the shorter the sketch of each."""

_WIDE = (torch.float32, torch.float64)


def sketch_length(num_groups: int) -> int:
    """K for a model with ``num_groups`` groups, so that all sketches together stay near 8,192 numbers."""
    for length in LENGTHS:
        if length * num_groups <= 8300:
            return length
    return LENGTHS[-1]


class SignBank:
    """Random ±1 for the rows of every parameter, the same on all ranks, in one vector of float32.

    A parameter takes the slice that starts at a hash of its name, so that the memory is that of the largest parameter's
    rows and not of all of them. ``capacity`` is the largest number of signs that any parameter will ask for.
    """

    SEED = 0x7275_6C65

    def __init__(self, *, capacity: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(self.SEED)
        length = capacity + max(65_536, capacity)
        bits = torch.randint(0, 2, (length,), generator=generator, dtype=torch.int8)
        self._signs = (bits.to(torch.float32) * 2 - 1).to(device)
        self._room = length - capacity
        self.capacity = capacity

    def signs(self, name: str, count: int) -> Tensor:
        """[count] float32 of ±1 that belong to ``name``; raises ValueError beyond the capacity."""
        if count > self.capacity:
            raise ValueError(f"{count} signs asked for '{name}', the bank was built for {self.capacity}.")
        start = xxhash.xxh64_intdigest(name.encode()) % self._room
        return self._signs[start : start + count]


@dataclass(frozen=True)
class Measured:
    """``norm2`` float64 [n] of the n gradients of one call, at positions ``indices``; the sketch, float64 [k], of every
    group that took part.
    """

    indices: tuple[int, ...]
    norm2: Tensor
    sketches: dict[int, Tensor]


class _Norms:
    """Norms of chunks in the order of their gradients: those of large ones at once, those of small ones in one call."""

    def __init__(self) -> None:
        self._norms: list[Tensor | None] = []
        self._counts: list[int] = []
        self._waiting: list[Tensor] = []

    def take(self, chunks: Sequence[Tensor]) -> None:
        """Measure the chunks of one gradient now."""
        self._counts.append(len(chunks))
        self._norms.extend(_chunk_norms(chunks))

    def keep(self, chunks: Sequence[Tensor]) -> None:
        """Measure the chunks of one gradient together with those of others."""
        self._counts.append(len(chunks))
        self._norms.extend([None] * len(chunks))
        self._waiting.extend(chunks)

    def result(self) -> tuple[list[Tensor], tuple[int, ...]]:
        """The norm of every chunk, and the number of chunks of every gradient."""
        late = iter(_chunk_norms(self._waiting))
        return [norm if norm is not None else next(late) for norm in self._norms], tuple(self._counts)


def _chunk_norms(chunks: Sequence[Tensor]) -> Sequence[Tensor]:
    if not chunks:
        return ()
    kind = torch.float64 if chunks[0].dtype == torch.float64 else torch.float32
    return torch._foreach_norm(list(chunks), 2, dtype=kind)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class Sketcher:
    """Measures gradients of P parameters in G groups; the same on all ranks for the same names and widths.

    ``widths`` is C per parameter: the elements of one of its W shards, padding included (all of them for W = 1).
    """

    def __init__(
        self,
        names: Sequence[str],
        widths: Sequence[int],
        group_of: Sequence[int],
        *,
        k: int,
        shards: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.k = k
        self.shards = shards
        self._group_of = tuple(group_of)
        self._rows = tuple(0 if width * shards <= SMALL else width // k for width in widths)
        self._tails = tuple(width - rows * k for width, rows in zip(widths, self._rows, strict=True))
        self._widths = tuple(widths)
        self._device = device if device is not None else torch.device("cpu")
        self._slots, self._spans = self._place_tails(max(group_of, default=-1) + 1)
        longest = max((stop - start) // k for start, stop in self._spans) if self._spans else 0
        bank = SignBank(capacity=max([shards * max(self._rows, default=0), longest, 1]), device=self._device)
        self._signs = [bank.signs(name, shards * rows) for name, rows in zip(names, self._rows, strict=True)]
        self._rest_signs = [
            bank.signs(f"tails of group {group}", (stop - start) // k)
            for group, (start, stop) in enumerate(self._spans)
        ]
        self._owners: dict[tuple[int, ...], Tensor] = {}

    def measure(self, gradients: Sequence[tuple[int, Tensor]], *, shard: int | None = None) -> Measured:
        """Norms and group sketches of (position, floating tensor) pairs, on their device, without synchronising.

        Tensors are read in logical order: whole, or [W, C] where W > 1, or with ``shard`` flat [C], that one of the W
        shards; the sketches of all shards add up to that of [W, C]. A chunk of ``NORM_CHUNK`` elements whose square sum
        exceeds float32 (norm 1.8e19) has norm inf.
        """
        rest = torch.zeros(self._spans[-1][1] if self._spans else 0, device=self._device)
        rows_of: dict[int, list[Tensor]] = {}
        targets: list[Tensor] = []
        tails: list[Tensor] = []
        norms = _Norms()
        for index, x in gradients:
            x_WC = x.reshape(1, -1) if self.shards == 1 or shard is not None else x
            group = self._group_of[index]
            rows = self._rows[index]
            parts = rows_of.setdefault(group, [])
            if rows:
                parts.extend(self._body(index, x_WC[:, : rows * self.k], shard))
                norms.take(self._chunks(x))  # while the sketch has just brought it into the cache
            else:
                norms.keep(self._chunks(x))
            tail = x_WC[:, rows * self.k :]
            if tail.shape[1]:
                slot = self._slots[index] + (shard or 0) * self._tails[index]
                targets.append(rest[slot : slot + tail.numel()].view(tail.shape))
                tails.append(tail)
        if targets:
            torch._foreach_copy_(targets, tails)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        sketches: dict[int, Tensor] = {}
        for group, parts in rows_of.items():
            start, stop = self._spans[group]
            if stop > start:
                parts.append(self._rest_signs[group] @ rest[start:stop].view(-1, self.k))
            sketches[group] = torch.stack(parts).double().sum(dim=0)
        indices = tuple(index for index, _ in gradients)
        return Measured(indices, self._by_gradient(*norms.result()), sketches)

    def _body(self, index: int, x_WC: Tensor, shard: int | None) -> list[Tensor]:
        """Signed sums [k] of the full rows, one per block of ``BLOCK_ROWS`` rows and shard, in float32 or float64."""
        rows = self._rows[index]
        signs_WR = self._signs[index].view(self.shards, rows)
        if shard is not None:
            signs_WR = signs_WR[shard : shard + 1]
        x_WRk = x_WC.reshape(-1, rows, self.k)  # a view: rows are contiguous within a shard
        sums: list[Tensor] = []
        for start in range(0, rows, BLOCK_ROWS):
            block_WRk = x_WRk[:, start : start + BLOCK_ROWS]
            block_WRk = block_WRk if block_WRk.dtype in _WIDE else block_WRk.float()
            block_signs_WR = signs_WR[:, start : start + BLOCK_ROWS].to(block_WRk.dtype)
            if self._device.type == "cpu":  # a batched product of one row is 13 times slower there than plain ones
                sums.extend(signs @ block for signs, block in zip(block_signs_WR, block_WRk, strict=True))
            else:
                sums.extend(torch.bmm(block_signs_WR.unsqueeze(1), block_WRk).squeeze(1).unbind(0))
        return sums

    def _by_gradient(self, norms: list[Tensor], counts: tuple[int, ...]) -> Tensor:
        """Squared norms float64 [n] of gradients whose chunks have these norms, so many each, in order."""
        total = torch.zeros(len(counts), dtype=torch.float64, device=self._device)
        if not norms:
            return total
        owners = self._owners.get(counts)
        if owners is None:
            order = [position for position, count in enumerate(counts) for _ in range(count)]
            owners = self._owners[counts] = torch.tensor(order, device=self._device)
        return total.index_add_(0, owners, torch.stack(norms).double().square())

    def _chunks(self, x: Tensor) -> tuple[Tensor, ...]:
        """Pieces of at most ``NORM_CHUNK`` elements, each contiguous: a strided sum is less exact."""
        if self.shards > 1 and x.dim() == 2:
            return tuple(piece for row in x.unbind(0) for piece in torch.split(row, NORM_CHUNK))
        return (x,) if x.numel() <= NORM_CHUNK else torch.split(x.reshape(-1), NORM_CHUNK)

    def _place_tails(self, num_groups: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Where each parameter's tail starts in the vector of all tails, and each group's span, a multiple of k."""
        slots = [0] * len(self._tails)
        spans: list[tuple[int, int]] = []
        end = 0
        for group in range(num_groups):
            start = end
            for index, of in enumerate(self._group_of):
                if of == group:
                    slots[index] = end
                    end += self.shards * self._tails[index]
            end = start + -(-(end - start) // self.k) * self.k
            spans.append((start, end))
        return slots, spans
