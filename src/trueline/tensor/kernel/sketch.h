/* Norm and sketch of a gradient (tensor/sketch.py) in one pass over memory.
 *
 * The sketch adds up rows of k numbers, each with its sign. Four rows are read at a time and added up in the width of
 * float32 (float64 for float64), and that to sums in float64, which stay in the first cache. Squares are in float64.
 */
#ifndef TRUELINE_SKETCH_H
#define TRUELINE_SKETCH_H

#include "wide.h"

/* AHEAD is how many bytes before it is read memory is asked for: machines guess one stream well and four badly, which
 * made a million numbers and more 1.8 times as slow. Nothing behind the end is read, asking for it is no access. */
enum { ROWS = 4, COLUMNS = 8, AHEAD = 65536 };

typedef float f8 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));

INLINE d8 eight_f64(const void *x) { return TAKE(d8, x); }
INLINE f8 eight_f32(const void *x) { return TAKE(f8, x); }
INLINE f8 eight_bf16(const void *x)
{
    u32x8 bits = __builtin_convertvector(TAKE(u16x8, x), u32x8) << 16;
    return AS(f8, bits);
}
INLINE f8 eight_f16(const void *x)
{
    d4 half[2] = {wide_f16(x), wide_f16((const u16 *)x + 4)};
    f4 single[2] = {__builtin_convertvector(half[0], f4), __builtin_convertvector(half[1], f4)};
    return TAKE(f8, single);
}

/* ``rows_NAME``: columns of ``num_rows`` rows that lie ``k`` apart. */
#define DEFINE_SKETCH(name, type, vector, scalar)                                                                     \
    INLINE void columns_##name(                                                                                       \
        const type *x, int64_t k, int num_rows, const float *signs, double *into, d4 squares[ROWS])                   \
    {                                                                                                                 \
        vector sum = eight_##name(x) * (scalar)signs[0];                                                              \
        for (int row = 1; row < num_rows; row++)                                                                      \
            sum += eight_##name(x + row * k) * (scalar)signs[row];                                                    \
        for (int row = 0; row < num_rows; row++) {                                                                    \
            if (num_rows == ROWS)                                                                                     \
                __builtin_prefetch((const void *)((uintptr_t)(x + row * k) + AHEAD));                                 \
            d4 low = wide_##name(x + row * k), high = wide_##name(x + row * k + 4);                                   \
            squares[row] += low * low + high * high;                                                                  \
        }                                                                                                             \
        d8 sums = TAKE(d8, into) + __builtin_convertvector(sum, d8);                                                  \
        memcpy(into, &sums, sizeof sums);                                                                             \
    }                                                                                                                 \
                                                                                                                      \
    INLINE void rows_##name(                                                                                          \
        const type *x, int64_t k, int num_rows, int64_t num, const float *signs, double *into, d4 squares[ROWS])      \
    {                                                                                                                 \
        int64_t done = 0;                                                                                             \
        d4 kept[ROWS];                                                                                                \
        float sign[ROWS];                                                                                             \
        memcpy(kept, squares, sizeof kept);                                                                           \
        for (int row = 0; row < num_rows; row++)                                                                      \
            sign[row] = signs[row];                                                                                   \
        for (; done + COLUMNS <= num; done += COLUMNS)                                                                \
            columns_##name(x + done, k, num_rows, sign, into + done, kept);                                           \
        if (done < num) {                                                                                             \
            size_t left = (size_t)(num - done);                                                                       \
            type some[ROWS * COLUMNS] = {0};                                                                          \
            double sums[COLUMNS] = {0};                                                                               \
            for (int row = 0; row < num_rows; row++)                                                                  \
                memcpy(some + row * COLUMNS, x + done + row * k, left * sizeof *x);                                   \
            memcpy(sums, into + done, left * sizeof *into);                                                           \
            columns_##name(some, COLUMNS, num_rows, sign, sums, kept);                                                \
            memcpy(into + done, sums, left * sizeof *into);                                                           \
        }                                                                                                             \
        memcpy(squares, kept, sizeof kept);                                                                           \
    }                                                                                                                 \
                                                                                                                      \
    INLINE double sketch_##name(const type *x, const Gradient *g, int64_t k, double *into)                            \
    {                                                                                                                 \
        d4 squares[ROWS] = {{0}};                                                                                     \
        int64_t row = 0, place = g->place;                                                                            \
        for (; row + ROWS <= g->rows; row += ROWS, x += ROWS * k)                                                     \
            rows_##name(x, k, ROWS, k, g->signs + row, into, squares);                                                \
        for (; row < g->rows; row++, x += k)                                                                          \
            rows_##name(x, k, 1, k, g->signs + row, into, squares);                                                   \
        for (int64_t left = g->tail; left > 0;) {                                                                     \
            int64_t column = place % k, here = left < k - column ? left : k - column;                                 \
            rows_##name(x, k, 1, here, g->tail_signs + place / k, into + column, squares);                            \
            x += here, left -= here, place += here;                                                                   \
        }                                                                                                             \
        return total(squares);                                                                                        \
    }

DEFINE_SKETCH(f16, u16, f8, float)
DEFINE_SKETCH(bf16, u16, f8, float)
DEFINE_SKETCH(f32, u32, f8, float)
DEFINE_SKETCH(f64, u64, d8, double)

INLINE double sketch_gradient(enum Kind kind, const char *x, const Gradient *gradient, int64_t k, double *into)
{
    switch (kind) {
    case F16: return sketch_f16((const u16 *)x, gradient, k, into);
    case BF16: return sketch_bf16((const u16 *)x, gradient, k, into);
    case F32: return sketch_f32((const u32 *)x, gradient, k, into);
    case F64: return sketch_f64((const u64 *)x, gradient, k, into);
    default: return NAN;
    }
}

#endif
