"""Norms and linear sketches of many gradients at once, in one pass over memory and few calls, without a copy of them.

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
from typing import cast

import torch
import xxhash
from torch import Tensor

BLOCK_ROWS = 1024
"""Rows that are added up in float32 before float64 takes over: a signed sum of n terms has a rounding error of about
2⁻²⁴·√(n/2) of its norm."""

SMALL = 4096
"""Parameters of up to so many elements are sketched together with the tails: one call for all of them."""

NORM_CHUNK = 131_072
"""Elements whose squares are added in float32 on the CPU; across chunks in float64. Relative error of the square below
1e-6 for float32 and 1e-5 for 16-bit gradients (tests/unit/test_tensor_sketch.py), where a flat float32 norm over 9M
elements is wrong by 1e-3 (docs: The maths)."""

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


@dataclass(frozen=True)
class _Part:
    """One gradient of a call: its group, how many of its elements fill rows, and the signs of these rows, a block at a
    time, for each of the shards that it is seen in.
    """

    group: int
    full: int
    signs: tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True)
class _Call:
    """What stays the same between calls about the same gradients.

    Their tails meet in one vector of float32: ``targets`` are views [W, tail] of it, ``spans`` (group, signs, view
    [R, k]) of the groups in it. ``owners`` int64 is the gradient (position) that each square sum belongs to.
    """

    parts: tuple[_Part, ...]
    targets: tuple[Tensor, ...]
    spans: tuple[tuple[int, Tensor, Tensor], ...]
    owners: Tensor


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
        self._height = max(NORM_CHUNK // k, 1) if self._device.type == "cpu" else BLOCK_ROWS
        self._calls: dict[tuple[tuple[int, ...], int | None], _Call] = {}

    def measure(self, gradients: Sequence[tuple[int, Tensor]], *, shard: int | None = None) -> Measured:
        """Norms and group sketches of (position, floating tensor) pairs, on their device, without synchronising.

        Tensors are read in logical order: whole, or [W, C] where W > 1, or with ``shard`` flat [C], that one of the W
        shards; the sketches of all shards add up to that of [W, C]. A chunk of ``NORM_CHUNK`` elements whose square sum
        exceeds float32 (norm 1.8e19) has norm inf.
        """
        indices = tuple(index for index, _ in gradients)
        call = self._calls.get((indices, shard))
        if call is None:
            call = self._calls[indices, shard] = self._prepared(indices, shard)
        sums: dict[int, list[Tensor]] = {part.group: [] for part in call.parts}
        squares: list[Tensor] = []
        tails: list[Tensor] = []
        body = self._in_cache if self._device.type == "cpu" else self._in_few_calls
        for part, (_, x) in zip(call.parts, gradients, strict=True):
            x_WC = x.reshape(len(part.signs), -1)
            if part.full:
                sums[part.group].extend(body(part, x_WC[:, : part.full], squares))
            if part.full < x_WC.shape[1]:
                tails.append(x_WC[:, part.full :])
        if tails:
            torch._foreach_copy_(call.targets, tails)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        for group, signs_R, rest_Rk in call.spans:
            sums[group].append(signs_R @ rest_Rk)
        pieces = [piece for tail in tails for piece in tail.unbind(0)]  # each contiguous: a strided sum is less exact
        norm2 = torch.zeros(len(indices), dtype=torch.float64, device=self._device)
        if squares or pieces:
            norm2.index_add_(0, call.owners, _joined(squares, pieces))
        return Measured(indices, norm2, {group: torch.stack(some).double().sum(dim=0) for group, some in sums.items()})

    def _in_cache(self, part: _Part, x_WC: Tensor, squares: list[Tensor]) -> list[Tensor]:
        """Signed sums [k] of the full rows, a block at a time, in float32 or float64; the square sums of the blocks go
        to ``squares``, made while the block is in the cache.
        """
        sums: list[Tensor] = []
        for x_C, signs in zip(x_WC.unbind(0), part.signs, strict=True):
            for block_Rk, signs_R in zip(_rows(x_C.view(-1, self.k), self._height), signs, strict=True):
                block = _wide(block_Rk)
                sums.append((signs_R if block.dtype == torch.float32 else signs_R.double()) @ block)
                flat = block.view(-1)
                squares.append(flat.dot(flat))
        return sums

    def _in_few_calls(self, part: _Part, x_WC: Tensor, squares: list[Tensor]) -> list[Tensor]:
        """The same where starting a kernel costs more than reading memory twice: all shards of a block at once."""
        sums: list[Tensor] = []
        x_WRk = x_WC.reshape(len(part.signs), -1, self.k)
        blocks = _rows(x_WRk, self._height, dim=1)
        for block_WRk, signs in zip(blocks, zip(*part.signs, strict=True), strict=True):
            block = _wide(block_WRk)
            signs_W1R = torch.stack(signs).unsqueeze(1).to(block.dtype)
            sums.extend(torch.bmm(signs_W1R, block).squeeze(1).unbind(0))
            norm = cast(Tensor, torch.linalg.vector_norm(block_WRk, dtype=block.dtype))  # pyright: ignore[reportUnknownMemberType]
            squares.append(norm.square())
        return sums

    def _prepared(self, indices: tuple[int, ...], shard: int | None) -> _Call:
        rest = torch.zeros(self._spans[-1][1] if self._spans else 0, device=self._device)
        parts = [self._part(index, shard) for index in indices]
        targets: list[Tensor] = []
        owners: list[int] = []
        late: list[int] = []
        for position, (index, part) in enumerate(zip(indices, parts, strict=True)):
            seen, tail = len(part.signs), self._tails[index]
            if part.full:
                blocks = len(part.signs[0])
                owners.extend([position] * (blocks * seen if self._device.type == "cpu" else blocks))
            if tail:
                slot = self._slots[index] + (shard or 0) * tail
                targets.append(rest[slot : slot + seen * tail].view(seen, tail))
                late.extend([position] * seen)
        spans = [(group, *self._spans[group]) for group in sorted({part.group for part in parts})]
        return _Call(
            parts=tuple(parts),
            targets=tuple(targets),
            spans=tuple((g, self._rest_signs[g], rest[a:b].view(-1, self.k)) for g, a, b in spans if b > a),
            owners=torch.tensor(owners + late, dtype=torch.int64, device=self._device),
        )

    def _part(self, index: int, shard: int | None) -> _Part:
        signs_WR = self._signs[index].view(self.shards, self._rows[index])
        signs_WR = signs_WR if shard is None else signs_WR[shard : shard + 1]
        return _Part(
            group=self._group_of[index],
            full=self._rows[index] * self.k,
            signs=tuple(_rows(signs_R, self._height) for signs_R in signs_WR.unbind(0)),
        )

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


def _rows(x: Tensor, height: int, *, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most ``height`` rows of ``x`` along ``dim``."""
    return torch.split(x, height, dim=dim)


def _wide(block: Tensor) -> Tensor:
    """The block in float32, or as it is in float64."""
    return block if block.dtype in _WIDE else block.float()


def _joined(squares: list[Tensor], pieces: list[Tensor]) -> Tensor:
    """Float64 [m] the square sums that there are, then those of the pieces, made in one call."""
    parts = [torch.stack(squares).double()] if squares else []
    if pieces:
        kind = torch.float64 if pieces[0].dtype == torch.float64 else torch.float32
        norms = torch._foreach_norm(pieces, 2, dtype=kind)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        parts.append(torch.stack(norms).double().square())
    return torch.cat(parts)
