/* Four numbers of any kind as float64, exactly but for integers beyond 2⁵³. */
#ifndef TRUELINE_WIDE_H
#define TRUELINE_WIDE_H

#include "kernel.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors only pass between functions that are inlined */

typedef double d4 __attribute__((vector_size(32)));
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint16_t u16x4 __attribute__((vector_size(8)));
typedef int64_t i64x4 __attribute__((vector_size(32)));
typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef float f8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

#define TAKE(type, from) ({ type taken; memcpy(&taken, (from), sizeof taken); taken; })
#define AS(type, bits) ({ __typeof__(bits) of = (bits); type as; memcpy(&as, &of, sizeof as); as; })

/* Number by number, which compilers see as one conversion; __builtin_convertvector GCC 12 does by halves. */
#define WIDE(four) ({ __typeof__(four) all = (four); (d4){(double)all[0], (double)all[1], (double)all[2], (double)all[3]}; })

INLINE d4 wide_f64(const void *x) { return TAKE(d4, x); }
INLINE d4 wide_f32(const void *x) { return WIDE(TAKE(f4, x)); }
INLINE d4 wide_i32(const void *x) { return WIDE(TAKE(i32x4, x)); }
INLINE d4 wide_u32(const void *x) { return WIDE(TAKE(u32x4, x)); }
INLINE d4 wide_i64(const void *x) { return WIDE(TAKE(i64x4, x)); }
INLINE d4 wide_u64(const void *x) { return WIDE(TAKE(u64x4, x)); }

INLINE f8 single_f32(const void *x) { return TAKE(f8, x); }

/* A bfloat16 is the upper half of a float32.
 *
 * The exponent of a float16 is biased by 112 less than that of float32, and once more where it is the largest, that of
 * infinity and NaN. A subnormal m · 2⁻²⁴ is what 2⁻¹⁴ grows by where m is put into its mantissa. */
#define DEFINE_HALVES(name, FLOATS, BITS, MEMORY_BITS)                                                                    INLINE FLOATS name##_bf16(const void *x)                                                                              {                                                                                                                         return AS(FLOATS, __builtin_convertvector(TAKE(MEMORY_BITS, x), BITS) << 16);                                     }                                                                                                                     INLINE FLOATS name##_f16(const void *x)                                                                               {                                                                                                                         BITS half = __builtin_convertvector(TAKE(MEMORY_BITS, x), BITS), size = half & 0x7FFF;                                BITS base = (BITS){0} + (113u << 23);                                                                                 BITS small = (BITS)(size < 0x400), endless = (BITS)(size >= 0x7C00);                                                  BITS normal = (size << 13) + (112u << 23) + (endless & (112u << 23));                                                 FLOATS grown = AS(FLOATS, (size << 13) + base) - AS(FLOATS, base);                                                    return AS(FLOATS, (AS(BITS, grown) & small) | (normal & ~small) | ((half & 0x8000) << 16));                       }

DEFINE_HALVES(four, f4, u32x4, u16x4)
DEFINE_HALVES(single, f8, u32x8, u16x8)

INLINE d4 wide_bf16(const void *x) { return WIDE(four_bf16(x)); }
INLINE d4 wide_f16(const void *x) { return WIDE(four_f16(x)); }

/* Sums and sums of squares, lane by lane. */
typedef struct {
    d4 sum[LANES / 4], square[LANES / 4];
} Sums;

#define DEFINE_SUMS(name, type)                                                                                       \
    INLINE void sixteen_##name(const type *x, Sums *sums)                                                             \
    {                                                                                                                 \
        for (int part = 0; part < LANES / 4; part++) {                                                                \
            d4 wide = wide_##name(x + 4 * part);                                                                      \
            sums->sum[part] += wide;                                                                                  \
            sums->square[part] += wide * wide;                                                                        \
        }                                                                                                             \
    }                                                                                                                 \
                                                                                                                      \
    INLINE void add_##name(const type *x, int num, Sums *into)                                                        \
    {                                                                                                                 \
        Sums sums = *into;                                                                                            \
        int done = 0;                                                                                                 \
        for (; done + LANES <= num; done += LANES)                                                                    \
            sixteen_##name(x + done, &sums);                                                                          \
        if (done < num) {                                                                                             \
            type rest[LANES] = {0};                                                                                   \
            memcpy(rest, x + done, (size_t)(num - done) * sizeof *x);                                                 \
            sixteen_##name(rest, &sums);                                                                              \
        }                                                                                                             \
        *into = sums;                                                                                                 \
    }

DEFINE_SUMS(f16, u16)
DEFINE_SUMS(bf16, u16)
DEFINE_SUMS(f32, u32)
DEFINE_SUMS(f64, u64)
DEFINE_SUMS(i32, i32)
DEFINE_SUMS(u32, u32)
DEFINE_SUMS(i64, i64)
DEFINE_SUMS(u64, u64)

/* All lanes together, in one order. */
INLINE double total(const d4 lanes[LANES / 4])
{
    d4 four = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    return (four[0] + four[1]) + (four[2] + four[3]);
}

#endif
