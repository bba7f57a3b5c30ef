/* The statistics, a block at a time: what was found until now, and the result at the end. */
#ifndef TRUELINE_STATS_H
#define TRUELINE_STATS_H

#include <math.h>

#include "projection.h"

/* Extremes are bits of finite floats, or integers, widened: as signed numbers and as unsigned ones. */
typedef struct {
    int64_t nan, pos_inf, neg_inf, zero, subnormal, num_finite;
    int64_t least, most;
    uint64_t least_bits, most_bits;
    Sums sums;
    double projections[NUM_PROJECTIONS];
} Found;

INLINE void begin(Found *found)
{
    memset(found, 0, sizeof *found);
    found->least = INT64_MAX;
    found->most = INT64_MIN;
    found->least_bits = UINT64_MAX;
}

/* ``low`` and ``high`` are the extremes, where anything was finite. */
INLINE void finish(const Found *found, double low, double high, double *stats)
{
    bool any = found->num_finite > 0;
    stats[0] = (double)found->nan;
    stats[1] = (double)found->pos_inf;
    stats[2] = (double)found->neg_inf;
    stats[3] = (double)found->zero;
    stats[4] = (double)found->subnormal;
    stats[5] = any ? low + 0.0 : NAN; /* no -0 */
    stats[6] = any ? high + 0.0 : NAN;
    stats[7] = total(found->sums.sum);
    stats[8] = total(found->sums.square);
    memcpy(stats + NUM_STATS - NUM_PROJECTIONS, found->projections, sizeof found->projections);
}

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(what) JOIN(what, NAME)

#define NAME f16
#define SIGNED int16_t
#define UNSIGNED uint16_t
#define MEMORY u16
#define SIGN 0x8000u
#define INF 0x7C00u
#define NORMAL 0x0400u
#define MASK 0x7400u /* 2^14 */
#include "float_block.h"

#define NAME bf16
#define SIGNED int16_t
#define UNSIGNED uint16_t
#define MEMORY u16
#define SIGN 0x8000u
#define INF 0x7F80u
#define NORMAL 0x0080u
#define MASK 0x7B80u /* 2^120 */
#include "float_block.h"

#define NAME f32
#define SIGNED int32_t
#define UNSIGNED uint32_t
#define MEMORY u32
#define SIGN 0x80000000u
#define INF 0x7F800000u
#define NORMAL 0x00800000u
#define MASK 0x7B800000u /* 2^120 */
#include "float_block.h"

#define NAME f64
#define SIGNED int64_t
#define UNSIGNED uint64_t
#define MEMORY u64
#define SIGN 0x8000000000000000u
#define INF 0x7FF0000000000000u
#define NORMAL 0x0010000000000000u
#define MASK 0x7BF0000000000000u /* 2^960 */
#include "float_block.h"

#define NAME i8
#define MEMORY i8
#define NARROW
#include "integer_block.h"

#define NAME u8
#define MEMORY u8
#define NARROW
#include "integer_block.h"

#define NAME i16
#define MEMORY i16
#define NARROW
#include "integer_block.h"

#define NAME u16
#define MEMORY u16
#define NARROW
#include "integer_block.h"

#define NAME i32
#define MEMORY i32
#include "integer_block.h"

#define NAME u32
#define MEMORY u32
#include "integer_block.h"

#define NAME i64
#define MEMORY i64
#include "integer_block.h"

#define NAME u64
#define MEMORY u64
#include "integer_block.h"

/* Booleans are bytes of which any but 0 is true. */
INLINE void block_bool(const u8 *x, int num, uint64_t start, const Weights *weights, Found *found)
{
    int64_t ones = 0;
    int done = 0;
    for (; done + 128 <= num; done += 128) { /* so many as a byte can count */
        uint8_t some = 0;
        for (int i = 0; i < 128; i++)
            some = (uint8_t)(some + (x[done + i] != 0));
        ones += some;
    }
    for (; done < num; done++)
        ones += x[done] != 0;
    found->num_finite += num;
    found->zero += num - ones;
    found->sums.sum[0][0] += (double)ones;
    found->sums.square[0][0] += (double)ones;
    project_bool(x, num, start, weights, found->projections);
}

/* Of a block whose first number is the ``start``-th of the whole. */
INLINE void block_stats(
    enum Kind kind, const char *x, int num, uint64_t start, const Weights *weights, Found *found)
{
    switch (kind) {
    case F16: block_f16((const u16 *)x, num, start, weights, found); break;
    case BF16: block_bf16((const u16 *)x, num, start, weights, found); break;
    case F32: block_f32((const u32 *)x, num, start, weights, found); break;
    case F64: block_f64((const u64 *)x, num, start, weights, found); break;
    case BOOL: block_bool((const u8 *)x, num, start, weights, found); break;
    case I8: block_i8((const i8 *)x, num, start, weights, found); break;
    case U8: block_u8((const u8 *)x, num, start, weights, found); break;
    case I16: block_i16((const i16 *)x, num, start, weights, found); break;
    case U16: block_u16((const u16 *)x, num, start, weights, found); break;
    case I32: block_i32((const i32 *)x, num, start, weights, found); break;
    case U32: block_u32((const u32 *)x, num, start, weights, found); break;
    case I64: block_i64((const i64 *)x, num, start, weights, found); break;
    case U64: block_u64((const u64 *)x, num, start, weights, found); break;
    case NUM_KINDS: break;
    }
}

INLINE void finish_stats(enum Kind kind, const Found *found, double *stats)
{
    double low = (double)found->least, high = (double)found->most;
    switch (kind) {
    case F16: extremes_f16(found, &low, &high); break;
    case BF16: extremes_bf16(found, &low, &high); break;
    case F32: extremes_f32(found, &low, &high); break;
    case F64: extremes_f64(found, &low, &high); break;
    case BOOL:
        low = found->zero == 0;
        high = found->zero < found->num_finite;
        break;
    case U64:
        low = (double)found->least_bits;
        high = (double)found->most_bits;
        break;
    default: break;
    }
    finish(found, low, high, stats);
}

#endif
