/* One value, block by block: contiguous memory as it lies, anything else gathered in row-major order. */
#ifndef TRUELINE_MEASURE_H
#define TRUELINE_MEASURE_H

#include "fingerprint.h"
#include "stats.h"

/* How far a value has been gathered. */
typedef struct {
    const char *at;
    int64_t index[MAX_DIMS];
} Place;

INLINE void gather_run(int width, const char *from, int64_t stride, int64_t num, char *to)
{
    if (stride == 1) {
        memcpy(to, from, (size_t)(num * width));
        return;
    }
    switch (width) {
#define GATHER(bytes, type)                                                                                           \
    case bytes:                                                                                                       \
        for (int64_t i = 0; i < num; i++)                                                                             \
            ((type *)to)[i] = ((const type *)from)[i * stride];                                                       \
        break;
        GATHER(8, u64)
        GATHER(4, u32)
        GATHER(2, u16)
        GATHER(1, u8)
#undef GATHER
    }
}

/* The next ``num`` numbers, which are there. */
INLINE void gather(const Value *value, Place *place, int num, char *to)
{
    int width = width_of(value->kind), last = value->ndim - 1;
    while (num > 0) {
        int64_t left = value->shape[last] - place->index[last], here = left < num ? left : num;
        gather_run(width, place->at, value->stride[last], here, to);
        to += here * width;
        num -= (int)here;
        place->at += here * value->stride[last] * width;
        place->index[last] += here;
        for (int dim = last; dim > 0 && place->index[dim] == value->shape[dim]; dim--) {
            place->at += (value->stride[dim - 1] - value->shape[dim] * value->stride[dim]) * width;
            place->index[dim] = 0;
            place->index[dim - 1]++;
        }
    }
}

INLINE void measure_value(const Value *value, Measure *measure)
{
    char gathered[BLOCK * 8];
    Place place = {.at = value->memory};
    Found found;
    int width = width_of(value->kind);
    uint64_t start = measure->start, words_each = width == 8 ? 2 : 1;
    begin(&found);
    for (int64_t done = 0; done < value->num; done += BLOCK) {
        int here = value->num - done < BLOCK ? (int)(value->num - done) : BLOCK;
        const char *block = value->memory + done * width;
        if (value->ndim > 0) {
            gather(value, &place, here, gathered);
            block = gathered;
        }
        if (measure->stats)
            block_stats(value->kind, block, here, &found);
        if (measure->weights)
            measure->fingerprint += words_fingerprint(width, block, here, start, measure->weights);
        start += (uint64_t)here * words_each;
    }
    if (measure->stats)
        finish_stats(value->kind, &found, value->times, measure->stats);
}

#endif
