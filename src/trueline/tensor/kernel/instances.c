/* The kernels, compiled once for each instruction set that is worth it. */

#include "exponents.h"
#include "measure.h"
#include "sketch.h"

#define INSTANCE(name, target)                                                                                        \
    target static void measure_##name(const Value *value, Measure *measure) { measure_value(value, measure); }        \
    target static double sketch_##name(                                                                               \
        enum Kind kind, const char *memory, const Gradient *gradient, int64_t k, double *into)                        \
    {                                                                                                                 \
        return sketch_gradient(kind, memory, gradient, k, into);                                                      \
    }                                                                                                                 \
    target static void exponents_##name(enum Kind kind, const char *memory, int64_t num, int64_t *counts)             \
    {                                                                                                                 \
        count_exponents(kind, memory, num, counts);                                                                   \
    }                                                                                                                 \
    static const Kernels name = {#name, measure_##name, sketch_##name, exponents_##name};

INSTANCE(baseline, )

#if defined(__x86_64__)
INSTANCE(avx2, __attribute__((target("avx2"))))
INSTANCE(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))

const Kernels *const ALL_KERNELS[] = {&baseline, &avx2, &avx512};

bool kernels_run_here(const Kernels *kernels)
{
    __builtin_cpu_init();
    if (kernels == &avx2)
        return __builtin_cpu_supports("avx2");
    if (kernels == &avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return true;
}
#else
const Kernels *const ALL_KERNELS[] = {&baseline};

bool kernels_run_here(const Kernels *kernels)
{
    return kernels == &baseline;
}
#endif

const int NUM_KERNELS = sizeof ALL_KERNELS / sizeof *ALL_KERNELS;
