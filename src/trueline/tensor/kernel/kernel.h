/* What the files of the native kernel share.
 *
 * One call measures one value in host memory, block by block: statistics and fingerprint of a block are taken one after
 * the other while it is in the first cache, so that memory is read once. Every kernel is compiled for several
 * instruction sets from one source. Sums have LANES lanes of float64, number i going to lane i mod LANES, whatever the
 * width of the machine's vectors, and no product is fused with a sum (-ffp-contract=off): all give the same numbers.
 */
#ifndef TRUELINE_KERNEL_H
#define TRUELINE_KERNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#error "vectors are written as GCC and Clang have them; without the kernel NumPy measures"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of a fingerprint are in little-endian order"
#endif

#define INLINE static inline __attribute__((always_inline))

enum {
    BLOCK = 2048, /* numbers: 8 KB of float32, with their weights 24 KB; counts of a block fit 16 bits */
    LANES = 16,
    NUM_STATS = 12, /* the last are projections */
    NUM_PROJECTIONS = 3,
    NUM_EXPONENTS = 256,
    PAGE_BITS = 16,
    PAGE = 1 << PAGE_BITS, /* words, as in tensor/weights.py */
    BOOKS = 4096,
    MAX_DIMS = 64 /* torch's limit */
};

/* What the numbers are. The Python side knows these by name only. */
enum Kind { F16, BF16, F32, F64, BOOL, I8, U8, I16, U16, I32, U32, I64, U64, NUM_KINDS };

/* Memory that may lie at any address, whatever it was written as. */
typedef int8_t i8 __attribute__((may_alias));
typedef uint8_t u8 __attribute__((may_alias));
typedef int16_t i16 __attribute__((aligned(1), may_alias));
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef int32_t i32 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));
typedef int64_t i64 __attribute__((aligned(1), may_alias));
typedef uint64_t u64 __attribute__((aligned(1), may_alias));

/* The weights of the fingerprint, of whose bits projections make signs. A place is low + 2³² · high, low being signed. */
typedef struct {
    int32_t low[PAGE];
    uint32_t high[PAGE];
    uint64_t page[PAGE];
    uint64_t book[BOOKS];
} Weights;

/* What is to be measured: ``num`` numbers, contiguous where ndim is 0, else in row-major order of shape, with strides in
 * numbers. */
typedef struct {
    enum Kind kind;
    const char *memory;
    int64_t num;
    int ndim;
    int64_t shape[MAX_DIMS], stride[MAX_DIMS];
} Value;

/* What is taken of it. The numbers are ``num_runs`` runs of equal length, which begin at these places of the whole. */
typedef struct {
    double *stats; /* [NUM_STATS] in the order of schema.records.STAT_NAMES, or NULL */
    bool prints;   /* whether a fingerprint is taken */
    const Weights *weights;
    const uint64_t *starts;
    int64_t num_runs;
    uint64_t fingerprint;
} Measure;

/* A gradient, or one shard of it: rows of k numbers with a sign each, and a tail whose first number has this place in
 * the vector of the tails of its group, which has rows and signs of its own. */
typedef struct {
    int64_t rows, tail, place;
    const float *signs, *tail_signs;
} Gradient;

typedef struct {
    const char *name;
    void (*measure)(const Value *value, Measure *measure);
    /* The square sum; the sketch is added to float64 [k]. NaN for a kind that is no float. */
    double (*sketch)(enum Kind kind, const char *memory, const Gradient *gradient, int64_t k, double *into);
    /* Added to int64 [NUM_EXPONENTS]; nothing for a kind that is no float. */
    void (*exponents)(enum Kind kind, const char *memory, int64_t num, int64_t *counts);
} Kernels;

extern const Kernels *const ALL_KERNELS[];
extern const int NUM_KERNELS;
bool kernels_run_here(const Kernels *kernels);

INLINE int width_of(enum Kind kind) /* bytes */
{
    switch (kind) {
    case F64: case I64: case U64: return 8;
    case F32: case I32: case U32: return 4;
    case F16: case BF16: case I16: case U16: return 2;
    default: return 1;
    }
}

#endif
