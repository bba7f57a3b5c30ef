# ruff: noqa: ANN001, ANN202, PLR0915  (a kernel is one function of untyped pointers)
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportOperatorIssue=false, reportIndexIssue=false
"""Statistics and fingerprint of a float tensor on a CUDA device, in one pass over its memory: two kernels in Triton.

Letters: N elements, K elements of a tile, G programs, S the statistics.

A program keeps one tile of the pages of the fingerprint (``fingerprint`` says what a page is): it loads the weights of
its K places once and walks over every so many-th page. Every lane of the tile adds up for itself, in float64 where it
adds values, so the order of additions depends on N and on where the tensor lies in its whole, and on nothing else: two
runs give the same bits. A second kernel adds up what the programs found. No atomics, no synchronisation.

Values are classed by their bits, as a compiler may flush subnormals to zero where it compares numbers. Imported only
where Triton is installed and a tensor is on a CUDA device; ``on_device`` decides.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trueline.schema.columns.records import STAT_NAMES
from trueline.tensor.projections import LANES, MASKS_OF, ROWS
from trueline.tensor.weights import PAGE, DeviceWeights

TILE = 512
"""K: four elements for each of the 128 threads that run a program."""

MOST_PROGRAMS = 1024
"""G at most: about eight programs for each of the 132 multiprocessors of an H200."""

NUM_STATS = len(STAT_NAMES)

# dtype: bits as integers, mantissa bits, words of the fingerprint an element
_KINDS = {
    torch.float16: (torch.int16, 10, 1),
    torch.bfloat16: (torch.int16, 7, 1),
    torch.float32: (torch.int32, 23, 1),
    torch.float64: (torch.int64, 52, 2),
}

DTYPES = frozenset(_KINDS)


def measured(x: Tensor, start: int, weights: DeviceWeights) -> tuple[Tensor, Tensor]:
    """float64 [S] statistics in the order of ``STAT_NAMES`` and int64 [] fingerprint, both on the device of ``x``.

    ``x`` has one of ``DTYPES``, is contiguous, not empty and on the current device; ``start`` is the place of its first
    element in the whole. Two launches.
    """
    bits, mantissa, words = _KINDS[x.dtype]
    num = x.numel()
    page_size = PAGE // words
    first_page, lead = divmod(start, page_size)
    num_pages = -(-(lead + num) // page_size)
    tiles = page_size // TILE if num_pages > 1 else -(-(lead + num) // TILE)
    slices = min(num_pages, max(MOST_PROGRAMS // tiles, 1))
    num_programs = tiles * slices
    stats = torch.empty((num_programs + 1, NUM_STATS), dtype=torch.float64, device=x.device)
    prints = torch.empty(num_programs + 1, dtype=torch.int64, device=x.device)
    _tiles[(tiles, slices)](
        *(x.detach().view(-1).view(bits), num, lead, first_page, num_pages),
        *(weights.word, weights.page, weights.book, stats, prints),
        MANTISSA=mantissa,
        WIDTH=8 * x.element_size(),
        PAGE_MASK=PAGE - 1,
        PAGE_SIZE=page_size,
        K=TILE,
        LANES=LANES,
        ROWS=ROWS,
        S=NUM_STATS,
        MASK=MASKS_OF[x.dtype],
    )
    _fold[(1,)](stats, prints, num_programs, S=NUM_STATS, G=triton.next_power_of_2(num_programs))
    return stats[-1], prints[-1]


@triton.jit
def _tiles(
    bits_ptr,
    num,
    lead,
    first_page,
    num_pages,
    place_ptr,
    page_ptr,
    book_ptr,
    stats_ptr,
    prints_ptr,
    MANTISSA: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE_MASK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    K: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    S: tl.constexpr,
    MASK: tl.constexpr,
):
    """What one program finds in its tile of every so many-th page: row ``tile + tiles · slice`` of both outputs."""
    tile = tl.program_id(0)
    slice_ = tl.program_id(1)
    lane = tile.to(tl.int64) * K + tl.arange(0, K)
    INF: tl.constexpr = ((1 << (WIDTH - 1)) - 1) >> MANTISSA << MANTISSA
    if WIDTH == 64:
        low_place = tl.load(place_ptr + 2 * lane)
        high_place = tl.load(place_ptr + 2 * lane + 1)
        widest = tl.zeros([K], tl.float64)
    else:
        low_place = tl.load(place_ptr + lane)
        high_place = low_place
        widest = tl.zeros([K], tl.float32)
    nan = tl.zeros([K], tl.int32)
    positive = tl.zeros([K], tl.int32)
    negative = tl.zeros([K], tl.int32)
    zero = tl.zeros([K], tl.int32)
    subnormal = tl.zeros([K], tl.int32)
    print_ = tl.zeros([K], tl.int64)
    total = tl.zeros([K], tl.float64)
    square = tl.zeros([K], tl.float64)
    first = tl.zeros([K], tl.float64)
    second = tl.zeros([K], tl.float64)
    third = tl.zeros([K], tl.float64)
    row = lane // LANES % ROWS
    draw = tl.load(place_ptr + lane // (LANES * ROWS) * LANES + lane % LANES)
    low = widest + float("inf")
    high = widest - float("inf")
    index = slice_.to(tl.int64) * PAGE_SIZE + lane - lead
    page = first_page + slice_.to(tl.int64)
    for _ in range(slice_, num_pages, tl.num_programs(1)):
        in_range = (index >= 0) & (index < num)
        bits = tl.load(bits_ptr + index, mask=in_range, other=0)
        weight = tl.load(page_ptr + (page & PAGE_MASK)) * tl.load(book_ptr + page // (PAGE_MASK + 1))
        if WIDTH == 64:
            value = bits.to(tl.float64, bitcast=True)
            print_ += (bits.to(tl.int32).to(tl.int64) * low_place + (bits >> 32) * high_place) * weight
            # Projections count numbers, of which a page of words has half as many.
            half = page // 2
            weight = tl.load(page_ptr + (half & PAGE_MASK)) * tl.load(book_ptr + half // (PAGE_MASK + 1))
            position = page % 2 * PAGE_SIZE + lane
            draw = tl.load(place_ptr + position // (LANES * ROWS) * LANES + position % LANES)
        else:
            if WIDTH == 32:
                value = bits.to(tl.float32, bitcast=True)
            elif MANTISSA == 7:
                value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
            else:
                value = bits.to(tl.float16, bitcast=True).to(tl.float32)
            print_ += bits.to(tl.int64) * (low_place * weight)
        size = bits.to(tl.int64) & ((1 << (WIDTH - 1)) - 1)
        finite = (size < INF) & in_range
        nan += (size > INF).to(tl.int32)
        positive += ((size == INF) & (bits > 0)).to(tl.int32)
        negative += ((size == INF) & (bits < 0)).to(tl.int32)
        zero += ((size == 0) & in_range).to(tl.int32)
        subnormal += ((size > 0) & (size < (1 << MANTISSA))).to(tl.int32)
        low = tl.minimum(low, tl.where(finite, value, float("inf")))
        high = tl.maximum(high, tl.where(finite, value, -float("inf")))
        number = tl.where(finite, value, 0.0).to(tl.float64)
        total += number
        square += number * number
        number = tl.where(tl.abs(number) < MASK, number, 0.0)
        first += tl.where((((draw >> 31) ^ (weight >> 63)) & 1) == (row != 0), -number, number)
        second += tl.where((((draw >> 30) ^ (weight >> 62)) & 1) == (row != 1), -number, number)
        third += tl.where((((draw >> 29) ^ (weight >> 61)) & 1) == (row != 2), -number, number)
        index += tl.num_programs(1) * PAGE_SIZE
        page += tl.num_programs(1)
    program = tile + slice_ * tl.num_programs(0)
    out_ptr = stats_ptr + program * S
    tl.store(out_ptr, tl.sum(nan.to(tl.float64)))
    tl.store(out_ptr + 1, tl.sum(positive.to(tl.float64)))
    tl.store(out_ptr + 2, tl.sum(negative.to(tl.float64)))
    tl.store(out_ptr + 3, tl.sum(zero.to(tl.float64)))
    tl.store(out_ptr + 4, tl.sum(subnormal.to(tl.float64)))
    tl.store(out_ptr + 5, tl.min(low).to(tl.float64))
    tl.store(out_ptr + 6, tl.max(high).to(tl.float64))
    tl.store(out_ptr + 7, tl.sum(total))
    tl.store(out_ptr + 8, tl.sum(square))
    tl.store(out_ptr + 9, tl.sum(first))
    tl.store(out_ptr + 10, tl.sum(second))
    tl.store(out_ptr + 11, tl.sum(third))
    tl.store(prints_ptr + program, tl.sum(print_))


@triton.jit
def _fold(stats_ptr, prints_ptr, num, S: tl.constexpr, G: tl.constexpr):
    """All programs together, to the row after theirs: sums, and the extremes, NaN where nothing is finite."""
    program = tl.arange(0, G)
    in_range = program < num
    for stat in tl.static_range(S):
        values = tl.load(stats_ptr + program * S + stat, mask=in_range, other=0.0)
        if stat == 5:
            least = tl.min(tl.where(in_range, values, float("inf")))
            tl.store(stats_ptr + num * S + stat, tl.where(least == float("inf"), float("nan"), least))
        elif stat == 6:
            greatest = tl.max(tl.where(in_range, values, -float("inf")))
            tl.store(stats_ptr + num * S + stat, tl.where(greatest == -float("inf"), float("nan"), greatest))
        else:
            tl.store(stats_ptr + num * S + stat, tl.sum(values))
    tl.store(prints_ptr + num, tl.sum(tl.load(prints_ptr + program, mask=in_range, other=0)))
