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

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import xxhash
from torch import Tensor

from trueline.tensor.native import NATIVE, Native
from trueline.tensor.native_sketch import MAX_PREPARED, Measured, NativeSketch, Rows

BLOCK_ROWS = 1024
"""Rows that are added up in float32 before float64 takes over: a signed sum of n terms has a rounding error of about
2⁻²⁴·√(n/2) of its norm."""

SMALL = 4096
"""Parameters of up to so many elements are sketched together with the tails: one call for all of them."""

NORM_CHUNK = 163_840
"""Elements whose squares are added in float32 on the CPU; across chunks in float64. Relative error of the square below
1e-6 for float32 and 1e-5 for 16-bit gradients (tests/unit/tensor/test_sketch.py), where a flat float32 norm over 9M
elements is wrong by 1e-3 (docs: The maths)."""

LENGTHS: tuple[int, ...] = (4099, 2053, 1031, 521)
"""Primes near the powers of two; the more groups, the shorter the sketch of each."""


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
class _Block:
    """Rows that are added up at a time: their signs, [1, R], and where the sum [1, k] goes, which the first block
    overwrites (``beta`` 0) and others add to. On a device [W, 1, R], and the sums are collected as they come.
    """

    signs: Tensor
    into: Tensor
    beta: int = 0


@dataclass(frozen=True)
class _Part:
    """One gradient of a call: in how many shards it is seen, the ``blocks`` of the rows of each (on a device: of all of
    them at once), and the elements of these blocks and of the tail, if any, in one shard.
    """

    num_shards: int
    sizes: tuple[int, ...]
    blocks: tuple[tuple[_Block, ...], ...]


@dataclass(frozen=True)
class _Call:
    """What stays the same between calls about the same gradients, and the memory that they work in.

    ``sums`` [B, k] hold signed sums of at most ``BLOCK_ROWS`` rows, in float32 or float64, and last those of the
    ``spans`` of tails; ``sum_groups`` int64 says which of ``groups`` each belongs to. Tails meet in one vector of
    float32: ``targets`` are views of it, of one shard each (on a device: [W, tail]). ``owners`` int64 is the gradient
    (its place in the call) of each square sum of a block, then of each tail; on the CPU in the order of the vector,
    which ``lengths`` int64 cuts there.
    """

    measured: tuple[tuple[int, ...], Tensor, Tensor]
    parts: tuple[_Part, ...]
    sums: Tensor
    sum_groups: Tensor
    rest: Tensor
    targets: tuple[Tensor, ...]
    spans: tuple[tuple[_Block, Tensor], ...]
    owners: Tensor
    lengths: Tensor


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
        native: Native | None = NATIVE,
    ) -> None:
        self.k = k
        self.shards = shards
        self._group_of = tuple(group_of)
        self._rows = tuple(0 if width * shards <= SMALL else width // k for width in widths)
        self._tails = tuple(width - rows * k for width, rows in zip(widths, self._rows, strict=True))
        self.widths = tuple(widths)
        """C of each parameter."""
        self._device = device if device is not None else torch.device("cpu")
        self._slots, self._spans = self._place_tails(max(group_of, default=-1) + 1)
        longest = max((stop - start) // k for start, stop in self._spans) if self._spans else 0
        bank = SignBank(capacity=max([shards * max(self._rows, default=0), longest, 1]), device=self._device)
        self._signs = [bank.signs(name, shards * rows) for name, rows in zip(names, self._rows, strict=True)]
        self._rest_signs = [
            bank.signs(f"tails of group {group}", (stop - start) // k)
            for group, (start, stop) in enumerate(self._spans)
        ]
        self._in_cache = self._device.type == "cpu"
        self._height = max(NORM_CHUNK // k, 1) if self._in_cache else BLOCK_ROWS
        self._blocks_per_chunk = max(BLOCK_ROWS // self._height, 1)
        self._calls: dict[tuple[tuple[int, ...], int | None, torch.dtype], _Call] = {}
        self._native = NativeSketch(native, self._cut(), group_of, k=k) if native and self._in_cache else None

    def measure(self, gradients: Sequence[tuple[int, Tensor]], *, shard: int | None = None) -> Measured:
        """Norms and group sketches of (position, floating tensor) pairs, on their device, without synchronising.

        Tensors are read in logical order: whole, or [W, C] where W > 1, or with ``shard`` flat [C], that one of the W
        shards; the sketches of all shards add up to that of [W, C]. The compiled kernel reads host memory once and adds
        up in float64; without it a chunk of ``NORM_CHUNK`` elements whose square sum exceeds float32 (norm 1.8e19) has
        norm inf.
        """
        if self._native is not None:
            shards = (0, self.shards) if shard is None else (shard, 1)
            by_kernel = self._native.measure(gradients, first_shard=shards[0], num_shards=shards[1])
            if by_kernel is not None:
                return by_kernel
        call = self._call_about(gradients, shard)
        if self._in_cache:
            sums, squares, tails = self._read_in_cache(call, gradients)
        else:
            with torch.autocast(self._device.type, enabled=False):  # an update may run inside of the user's
                sums, squares, tails = self._read_in_few_calls(call, gradients)
        if tails:
            tails = [tail.real if tail.is_complex() else tail for tail in tails]  # a copy would warn that it does so
            torch._foreach_copy_(call.targets, tails)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        for block, rest_Rk in call.spans:
            block.into.addmm_(block.signs, rest_Rk.to(call.sums.dtype), beta=0)
        indices, positions, groups = call.measured
        norm2 = torch.zeros(len(indices), dtype=torch.float64, device=self._device)
        sketch = torch.zeros(len(groups), self.k, dtype=torch.float64, device=self._device)
        if squares or tails:
            norm2.index_add_(0, call.owners, self._square_sums(call, squares))
            sketch.index_add_(0, call.sum_groups, (torch.cat([*sums, call.sums]) if sums else call.sums).double())
        return Measured(indices, positions, groups, norm2, sketch)

    def _read_in_cache(
        self, call: _Call, gradients: Sequence[tuple[int, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Add signed rows up in ``call.sums``, a block at a time, while it is in the cache from its square sum.
        Returns no sums, the square sums, and the tails, of each shard by itself.
        """
        wide = call.sums.dtype
        squares: list[Tensor] = []
        tails: list[Tensor] = []
        for part, (_, x) in zip(call.parts, gradients, strict=True):
            shards = (
                (x if x.dim() == 1 else x.reshape(-1),)
                if part.num_shards == 1
                else x.reshape(part.num_shards, -1).unbind(0)
            )
            if not part.blocks[0]:  # all tail, as most parameters are, or empty
                tails.extend(shards if part.sizes else ())
                continue
            for x_C, blocks in zip(shards, part.blocks, strict=True):
                pieces = torch.split_with_sizes(x_C, part.sizes)
                for piece, block in zip(pieces, blocks, strict=False):
                    flat = piece if piece.dtype is wide else piece.to(wide)
                    # The dot product first: of the two it reads what is in no cache faster (benchmarks/overhead).
                    squares.append(flat.dot(flat))
                    # in place, which autocast leaves alone
                    block.into.addmm_(block.signs, flat.view(-1, self.k), beta=block.beta)
                tails.extend(pieces[len(blocks) :])
        return [], squares, tails

    def _read_in_few_calls(
        self, call: _Call, gradients: Sequence[tuple[int, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The same where starting a kernel costs more than reading memory twice: all shards at once. Returns the sums,
        [W, k] each, the square sums, and the tails [W, tail].
        """
        wide = call.sums.dtype
        sums: list[Tensor] = []
        squares: list[Tensor] = []
        tails: list[Tensor] = []
        for part, (_, x) in zip(call.parts, gradients, strict=True):
            pieces = torch.split_with_sizes(x.reshape(part.num_shards, -1), part.sizes, dim=1)
            for piece, block in zip(pieces, part.blocks[0], strict=False):
                block_WRk = piece.reshape(part.num_shards, -1, self.k)
                sums.append(torch.bmm(block.signs, block_WRk.to(wide)).squeeze(1))
                norm = cast(Tensor, torch.linalg.vector_norm(block_WRk, dtype=wide))  # pyright: ignore[reportUnknownMemberType]
                squares.append(norm.square())
            tails.extend(pieces[len(part.blocks[0]) :])
        return sums, squares, tails

    def _square_sums(self, call: _Call, squares: list[Tensor]) -> Tensor:
        """Float64 [m] the square sums of the blocks, then those of the pieces of the tails, as ``owners`` has them."""
        parts = [torch.stack(squares).double()] if squares else []
        if call.targets and self._in_cache:
            rest = call.rest.double().square_()
            parts.append(torch.segment_reduce(rest, "sum", lengths=call.lengths, unsafe=True))
        elif call.targets:
            norms = torch._foreach_norm(call.targets, 2, dtype=torch.float32)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            parts.append(torch.stack(norms).double().square())
        return torch.cat(parts)

    def _call_about(self, gradients: Sequence[tuple[int, Tensor]], shard: int | None) -> _Call:
        indices = tuple(index for index, _ in gradients)
        wide = torch.float64 if any(x.dtype == torch.float64 for _, x in gradients) else torch.float32
        call = self._calls.get((indices, shard, wide))
        if call is None:
            call = self._calls[indices, shard, wide] = self._prepared(indices, shard, wide)
            num_prepared = sum(len(key[0]) for key in self._calls)
            for key in list(self._calls)[:-1]:
                if num_prepared > MAX_PREPARED * len(self.widths):
                    num_prepared -= len(key[0])
                    del self._calls[key]
        return call

    def _prepared(self, indices: tuple[int, ...], shard: int | None, wide: torch.dtype) -> _Call:
        groups = sorted({self._group_of[index] for index in indices})
        spans = self._touched(indices, shard)
        num_shards = self.shards if shard is None else 1
        counts = [len(self._heights(index)) for index in indices]
        num_sums = [num_shards * (-(-count // self._blocks_per_chunk) if self._in_cache else count) for count in counts]
        room = (sum(num_sums) if self._in_cache else 0) + len(spans)
        sums = torch.zeros(room, self.k, dtype=wide, device=self._device)
        free = iter(torch.split(sums, 1))
        parts = tuple(self._part(index, shard, free=free, wide=wide) for index in indices)
        sum_groups = [self._group_of[index] for index, num in zip(indices, num_sums, strict=True) for _ in range(num)]
        owners = [order for order, part in enumerate(parts) for blocks in part.blocks for _ in blocks]
        rest = torch.zeros(self.k * sum(stop - start for _, start, stop in spans), device=self._device)
        targets, pieces = self._targets(indices, shard, rest, spans)
        in_order = sorted(pieces) if self._in_cache else pieces
        cuts = [0, *(start for start, _ in sorted(pieces)[1:]), len(rest)]
        return _Call(
            measured=(indices, self._ints(indices), self._ints(groups)),
            parts=parts,
            sums=sums,
            sum_groups=self._ints([groups.index(group) for group in [*sum_groups, *(g for g, _, _ in spans)]]),
            rest=rest,
            targets=targets,
            spans=tuple(
                (_Block(self._rest_signs[group][None, start:stop].to(wide), next(free)), rest_Rk)
                for (group, start, stop), rest_Rk in zip(
                    spans, torch.split(rest.view(-1, self.k), [stop - start for _, start, stop in spans]), strict=True
                )
            ),
            owners=self._ints(owners + [order for _, order in in_order]),
            lengths=self._ints([stop - start for start, stop in itertools.pairwise(cuts)]),
        )

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _heights(self, index: int) -> list[int]:
        """How many rows of a parameter go into each block: alike, since a short one at the end costs as much as any."""
        rows = self._rows[index]
        count = -(-rows // self._height)
        return [rows // count + (number < rows % count) for number in range(count)]

    def _part(self, index: int, shard: int | None, *, free: Iterator[Tensor], wide: torch.dtype) -> _Part:
        heights = self._heights(index)
        signs_WR = self._signs[index].view(self.shards, self._rows[index]).to(wide)
        signs_WR = signs_WR if shard is None else signs_WR[shard : shard + 1]
        blocks: list[tuple[_Block, ...]] = []
        for signs in torch.split(signs_WR, 1) if self._in_cache else (signs_WR[:, None],):
            chunk_blocks: list[_Block] = []
            for number, signs_R in enumerate(torch.split(signs, heights, dim=-1) if heights else ()):
                first = number % self._blocks_per_chunk == 0
                into = signs_R if not self._in_cache else next(free) if first else chunk_blocks[-1].into
                chunk_blocks.append(_Block(signs_R, into, beta=int(not first)))
            blocks.append(tuple(chunk_blocks))
        tail = (self._tails[index],) if self._tails[index] else ()
        return _Part(len(signs_WR), tuple(height * self.k for height in heights) + tail, tuple(blocks))

    def _touched(self, indices: tuple[int, ...], shard: int | None) -> list[tuple[int, int, int]]:
        """(group, first row, row after the last) of the tails of these gradients among the rows of their group."""
        rows: dict[int, tuple[int, int]] = {}
        for index in indices:
            if self._tails[index]:
                group = self._group_of[index]
                start, stop = (slot - self._spans[group][0] for slot in self._slot(index, shard))
                first, last = rows.get(group, (start, stop))
                rows[group] = min(first, start), max(last, stop)
        return [(group, start // self.k, -(-stop // self.k)) for group, (start, stop) in sorted(rows.items())]

    def _targets(
        self, indices: tuple[int, ...], shard: int | None, rest: Tensor, spans: list[tuple[int, int, int]]
    ) -> tuple[tuple[Tensor, ...], list[tuple[int, int]]]:
        """Where in ``rest`` each tail is copied to, and (start there, place in the call) of each."""
        begins: dict[int, int] = {}
        num_rest = 0
        for group, start, stop in spans:
            begins[group] = num_rest - self._spans[group][0] - start * self.k
            num_rest += (stop - start) * self.k
        targets: list[Tensor] = []
        pieces: list[tuple[int, int]] = []
        for order, index in enumerate(indices):
            if not self._tails[index]:
                continue
            start, stop = (slot + begins[self._group_of[index]] for slot in self._slot(index, shard))
            target_WC = rest[start:stop].view(-1, self._tails[index])
            targets.extend(target_WC.unbind(0) if self._in_cache else [target_WC])
            pieces.append((start, order))
        return tuple(targets), pieces

    def _slot(self, index: int, shard: int | None) -> tuple[int, int]:
        """First and last element (exclusive) of a parameter's tail, or one shard of it, in the vector of all tails."""
        tail = self._tails[index]
        start = self._slots[index] + (shard or 0) * tail
        return start, start + (self.shards if shard is None else 1) * tail

    def _cut(self) -> Rows:
        """What the kernel has to know of every parameter."""
        offsets = [slot - self._spans[group][0] for slot, group in zip(self._slots, self._group_of, strict=True)]
        tail_signs = [self._rest_signs[group] for group in self._group_of]
        return Rows(self.widths, self._rows, self._tails, offsets, self._signs, tail_signs)

    def _place_tails(self, num_groups: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Where each parameter's tail starts in the vector of all tails, and each group's span, a multiple of k."""
        slots = [0] * len(self._tails)
        spans: list[tuple[int, int]] = []
        end = 0
        for group in range(num_groups):
            start = end
            for index, group_of_param in enumerate(self._group_of):
                if group_of_param == group:
                    slots[index] = end
                    end += self.shards * self._tails[index]
            end = start + -(-(end - start) // self.k) * self.k
            spans.append((start, end))
        return slots, spans
