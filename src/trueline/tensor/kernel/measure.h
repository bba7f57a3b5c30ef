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
    int64_t length = measure->num_runs ? value->num / measure->num_runs : 0;
    const char *at = value->memory;
    begin(&found);
    for (int64_t run = 0; run < measure->num_runs; run++) {
        for (int64_t done = 0; done < length; done += BLOCK) {
            int here = length - done < BLOCK ? (int)(length - done) : BLOCK;
            uint64_t start = measure->starts[run] + (uint64_t)done;
            const char *block = at;
            if (value->ndim > 0) {
                gather(value, &place, here, gathered);
                block = gathered;
            }
            if (measure->stats)
                block_stats(value->kind, block, here, start, measure->weights, &found);
            if (measure->prints)
                measure->fingerprint += words_fingerprint(width, block, here, start, measure->weights);
            at += (int64_t)here * width;
        }
    }
    if (measure->stats)
        finish_stats(value->kind, &found, measure->stats);
}

#endif
