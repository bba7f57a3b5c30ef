/* Finite non-zero floats by floor(log2|x|) + 127, clipped to 0 and 255. */
#ifndef TRUELINE_EXPONENTS_H
#define TRUELINE_EXPONENTS_H

#include "wide.h"

/* The bucket of a number of any sign by its bits, with 0 for what is zero and 255 for what is not finite, both of which
 * are taken off again. */
INLINE int bucket_f32(uint32_t bits) { return (int)(bits >> 23 & 0xFF); }
INLINE int bucket_bf16(uint16_t bits) { return bits >> 7 & 0xFF; }
INLINE int bucket_f64(uint64_t bits)
{
    int exponent = (int)(bits >> 52 & 0x7FF) - (1023 - 127);
    return exponent < 0 ? 0 : exponent > 255 ? 255 : exponent;
}
INLINE int bucket_f16(uint16_t bits)
{
    uint16_t size = bits & 0x7FFF;
    if (size >= 0x0400)
        return size >= 0x7C00 ? 255 : (size >> 10) + 112;
    return size ? 102 + 32 - __builtin_clz(size) : 0; /* m · 2⁻²⁴ */
}

/* Four histograms in turn: a number is often like the one before it, whose count is not back in memory yet. */
#define DEFINE_EXPONENTS(name, type, SIGN, INF)                                                                       \
    INLINE void exponents_##name(const type *x, int64_t num, int64_t *counts)                                         \
    {                                                                                                                 \
        int64_t some[4][NUM_EXPONENTS] = {{0}}, zero = 0, odd = 0;                                                    \
        for (int64_t i = 0; i < num; i++) {                                                                           \
            some[i & 3][bucket_##name(x[i])]++;                                                                       \
            zero += (x[i] & ~(SIGN)) == 0;                                                                            \
            odd += (x[i] & ~(SIGN)) >= (INF);                                                                         \
        }                                                                                                             \
        for (int bucket = 0; bucket < NUM_EXPONENTS; bucket++)                                                        \
            counts[bucket] += some[0][bucket] + some[1][bucket] + some[2][bucket] + some[3][bucket];                  \
        counts[0] -= zero;                                                                                            \
        counts[NUM_EXPONENTS - 1] -= odd;                                                                             \
    }

DEFINE_EXPONENTS(f16, u16, 0x8000u, 0x7C00u)
DEFINE_EXPONENTS(bf16, u16, 0x8000u, 0x7F80u)
DEFINE_EXPONENTS(f32, u32, 0x80000000u, 0x7F800000u)
DEFINE_EXPONENTS(f64, u64, 0x8000000000000000u, 0x7FF0000000000000u)

INLINE void count_exponents(enum Kind kind, const char *x, int64_t num, int64_t *counts)
{
    switch (kind) {
    case F16: exponents_f16((const u16 *)x, num, counts); break;
    case BF16: exponents_bf16((const u16 *)x, num, counts); break;
    case F32: exponents_f32((const u32 *)x, num, counts); break;
    case F64: exponents_f64((const u64 *)x, num, counts); break;
    default: break;
    }
}

#endif
