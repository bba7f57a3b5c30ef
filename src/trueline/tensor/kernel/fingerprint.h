/* The fingerprint of tensor/fingerprint.py: words times weights, mod 2⁶⁴.
 *
 * word · (low + 2³² · high) = word · low + 2³² · (word · high mod 2³²): two products of 32 bits, of which vectors of any
 * machine have some, where few have one of 64.
 */
#ifndef TRUELINE_FINGERPRINT_H
#define TRUELINE_FINGERPRINT_H

#include "kernel.h"

#define DEFINE_PAGE(name, type)                                                                                       \
    INLINE uint64_t page_##name(const type *x, int num, const int32_t *restrict low, const uint32_t *restrict high)   \
    {                                                                                                                 \
        uint64_t lower = 0;                                                                                           \
        uint32_t upper = 0;                                                                                           \
        for (int i = 0; i < num; i++) {                                                                               \
            int32_t word = x[i];                                                                                      \
            lower += (uint64_t)((int64_t)word * low[i]);                                                              \
            upper += (uint32_t)word * high[i];                                                                        \
        }                                                                                                             \
        return lower + ((uint64_t)upper << 32);                                                                       \
    }

DEFINE_PAGE(i8, i8)
DEFINE_PAGE(i16, i16)
DEFINE_PAGE(i32, i32)

/* Of numbers that follow each other, the first being the ``start``-th of the whole. Those of 64 bits are two words. */
INLINE uint64_t words_fingerprint(int width, const char *x, int64_t num, uint64_t start, const Weights *weights)
{
    uint64_t sum = 0;
    if (width == 8)
        num *= 2, start *= 2, width = 4;
    while (num > 0) {
        uint64_t page = start >> PAGE_BITS, place = start & (PAGE - 1);
        int count = num < (int64_t)(PAGE - place) ? (int)num : (int)(PAGE - place);
        const int32_t *low = weights->low + place;
        const uint32_t *high = weights->high + place;
        uint64_t part = width == 4   ? page_i32((const i32 *)x, count, low, high)
                        : width == 2 ? page_i16((const i16 *)x, count, low, high)
                                     : page_i8((const i8 *)x, count, low, high);
        sum += part * weights->page[page & (PAGE - 1)] * weights->book[page >> PAGE_BITS & (BOOKS - 1)];
        x += (int64_t)count * width;
        start += (uint64_t)count;
        num -= count;
    }
    return sum;
}

#endif
