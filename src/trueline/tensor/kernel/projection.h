/* The random projections of tensor/projections.py: sums of numbers, each with a sign by its place in the whole.
 *
 * A chunk of 64 places is four rows of 16 lanes. With t the sum of a lane over the rows, t minus twice row k is what
 * the lane adds to projection k, but for a sign that the lane draws: few additions serve all projections. Floats of up
 * to 32 bits are added in float32 within GROUP chunks, all else in float64.
 */
#ifndef TRUELINE_PROJECTION_H
#define TRUELINE_PROJECTION_H

#include "wide.h"

enum { CHUNK_ROWS = 4, CHUNK = CHUNK_ROWS * LANES, GROUP = 8 };

#define LENGTH(vector) ((int)(sizeof(vector) / sizeof((vector){0}[0])))
#define DRAWN_32(low) TAKE(u32x8, low)
#define DRAWN_64(low) (__builtin_convertvector(TAKE(u32x4, low), u64x4) << 32)

/* FLOATS and BITS are vectors of one length and width, TAKEN reads the former, DRAWN the signs as topmost bits. */
#define DEFINE_PROJECTIONS(name, type, FLOATS, BITS, TAKEN, DRAWN)                                                    \
    INLINE void project_chunks_##name(const type *x, int chunks, const int32_t *low, double lanes[][LANES])           \
    {                                                                                                                 \
        enum { LONG = LENGTH(FLOATS), PARTS = LANES / LONG, TOP = 8 * sizeof((BITS){0}[0]) - 1 };                     \
        const BITS sign = (BITS){0} + ((__typeof__((BITS){0}[0]))1 << TOP);                                           \
        FLOATS found[NUM_PROJECTIONS][PARTS] = {0};                                                                   \
        for (; chunks > 0; chunks--, x += CHUNK, low += LANES)                                                        \
            for (int part = 0; part < PARTS; part++) {                                                                \
                BITS draws = DRAWN(low + LONG * part);                                                                \
                FLOATS row[CHUNK_ROWS];                                                                               \
                for (int at = 0; at < CHUNK_ROWS; at++)                                                               \
                    row[at] = TAKEN(x + LANES * at + LONG * part);                                                    \
                FLOATS sum = (row[0] + row[1]) + (row[2] + row[3]);                                                   \
                for (int k = 0; k < NUM_PROJECTIONS; k++) {                                                           \
                    BITS turned = AS(BITS, sum - (row[k] + row[k])) ^ ((draws << k) & sign);                          \
                    found[k][part] += AS(FLOATS, turned);                                                             \
                }                                                                                                     \
            }                                                                                                         \
        for (int k = 0; k < NUM_PROJECTIONS; k++)                                                                     \
            for (int lane = 0; lane < LANES; lane++)                                                                  \
                lanes[k][lane] += (double)found[k][lane / LONG][lane % LONG];                                         \
    }                                                                                                                 \
                                                                                                                      \
    INLINE void project_##name(const type *x, int num, uint64_t start, const Weights *weights, double *projections)   \
    {                                                                                                                 \
        while (num > 0) {                                                                                             \
            uint64_t page = start >> PAGE_BITS, place = start & (PAGE - 1);                                           \
            uint64_t turn = weights->page[page & (PAGE - 1)] * weights->book[page >> PAGE_BITS & (BOOKS - 1)];        \
            int count = num < (int64_t)(PAGE - place) ? num : (int)(PAGE - place), done = 0;                          \
            double lanes[NUM_PROJECTIONS][LANES] = {{0}};                                                             \
            while (done < count) {                                                                                    \
                const int32_t *low = weights->low + (place + (uint64_t)done) / CHUNK * LANES;                         \
                int lead = (int)((place + (uint64_t)done) % CHUNK), here = count - done;                              \
                if (lead == 0 && here >= CHUNK) {                                                                     \
                    int chunks = here / CHUNK < GROUP ? here / CHUNK : GROUP;                                         \
                    project_chunks_##name(x + done, chunks, low, lanes);                                              \
                    done += chunks * CHUNK;                                                                           \
                } else {                                                                                              \
                    type some[CHUNK] = {0};                                                                           \
                    here = here < CHUNK - lead ? here : CHUNK - lead;                                                 \
                    memcpy(some + lead, x + done, (size_t)here * sizeof *x);                                          \
                    project_chunks_##name(some, 1, low, lanes);                                                       \
                    done += here;                                                                                     \
                }                                                                                                     \
            }                                                                                                         \
            for (int k = 0; k < NUM_PROJECTIONS; k++) {                                                               \
                double sum = 0;                                                                                       \
                for (int lane = 0; lane < LANES; lane++)                                                              \
                    sum += lanes[k][lane];                                                                            \
                projections[k] += (turn << k) >> 63 ? -sum : sum;                                                     \
            }                                                                                                         \
            x += count;                                                                                               \
            start += (uint64_t)count;                                                                                 \
            num -= count;                                                                                             \
        }                                                                                                             \
    }

DEFINE_PROJECTIONS(f16, u16, f8, u32x8, single_f16, DRAWN_32)
DEFINE_PROJECTIONS(bf16, u16, f8, u32x8, single_bf16, DRAWN_32)
DEFINE_PROJECTIONS(f32, u32, f8, u32x8, single_f32, DRAWN_32)
DEFINE_PROJECTIONS(f64, u64, d4, u64x4, wide_f64, DRAWN_64)
DEFINE_PROJECTIONS(i32, i32, d4, u64x4, wide_i32, DRAWN_64)
DEFINE_PROJECTIONS(u32, u32, d4, u64x4, wide_u32, DRAWN_64)
DEFINE_PROJECTIONS(i64, i64, d4, u64x4, wide_i64, DRAWN_64)
DEFINE_PROJECTIONS(u64, u64, d4, u64x4, wide_u64, DRAWN_64)

/* Small integers go as floats; a boolean that is not 0 as 1. */
#define DEFINE_NARROW_PROJECTIONS(name, type, WORTH)                                                                  \
    INLINE void project_##name(const type *x, int num, uint64_t start, const Weights *weights, double *projections)   \
    {                                                                                                                 \
        float floats[BLOCK];                                                                                          \
        for (int i = 0; i < num; i++)                                                                                 \
            floats[i] = (float)WORTH(x[i]);                                                                           \
        project_f32((const u32 *)floats, num, start, weights, projections);                                           \
    }

#define AS_IT_IS(x) (x)
#define AS_BOOL(x) ((x) != 0)
DEFINE_NARROW_PROJECTIONS(i8, i8, AS_IT_IS)
DEFINE_NARROW_PROJECTIONS(u8, u8, AS_IT_IS)
DEFINE_NARROW_PROJECTIONS(i16, i16, AS_IT_IS)
DEFINE_NARROW_PROJECTIONS(u16, u16, AS_IT_IS)
DEFINE_NARROW_PROJECTIONS(bool, u8, AS_BOOL)

#endif
