/* Statistics of a block of floats. A template, included for each width with
 *   NAME                of the floats, and of add_NAME and wide_NAME in wide.h
 *   SIGNED, UNSIGNED    integers of their width, and MEMORY, the latter at any address
 *   SIGN, INF, NORMAL   the bits of -0, of infinity and of the smallest normal number
 *   MASK                the bits of what projections leave out, as masks are, with all that is larger
 *
 * Bits of floats sort like the numbers they stand for: seen as signed integers, the largest is the largest positive
 * number and the smallest the negative number nearest to zero; seen as unsigned ones, the largest is the most negative
 * number and the smallest the positive one nearest to zero. These four tell the extremes, and whether there are any
 * NaN, infinities, zeros or subnormals, which are counted only then.
 */

#define SIZE(bits) ((UNSIGNED)((bits) & (UNSIGNED)~SIGN))

typedef struct {
    SIGNED least, most;
    UNSIGNED least_bits, most_bits;
} OF(Range);

INLINE OF(Range) OF(range)(const MEMORY *x, int num)
{
    UNSIGNED first = x[0], least_bits = first, most_bits = first;
    SIGNED least = (SIGNED)first, most = least;
    for (int i = 0; i < num; i++) {
        UNSIGNED bits = x[i];
        SIGNED number = (SIGNED)bits;
        least = number < least ? number : least;
        most = number > most ? number : most;
        least_bits = bits < least_bits ? bits : least_bits;
        most_bits = bits > most_bits ? bits : most_bits;
    }
    return (OF(Range)){least, most, least_bits, most_bits};
}

INLINE void OF(count_near_zero)(const MEMORY *x, int num, Found *found)
{
    UNSIGNED zero = 0, small = 0;
    for (int i = 0; i < num; i++) {
        UNSIGNED size = SIZE(x[i]);
        zero = (UNSIGNED)(zero + (size == 0));
        small = (UNSIGNED)(small + (size < NORMAL));
    }
    found->zero += (int64_t)zero;
    found->subnormal += (int64_t)(small - zero);
}

INLINE int OF(count_odd)(const MEMORY *x, int num, Found *found)
{
    UNSIGNED nan = 0, pos_inf = 0, neg_inf = 0;
    for (int i = 0; i < num; i++) {
        UNSIGNED bits = x[i];
        nan = (UNSIGNED)(nan + (SIZE(bits) > INF));
        pos_inf = (UNSIGNED)(pos_inf + (bits == INF));
        neg_inf = (UNSIGNED)(neg_inf + (bits == (SIGN | INF)));
    }
    found->nan += (int64_t)nan;
    found->pos_inf += (int64_t)pos_inf;
    found->neg_inf += (int64_t)neg_inf;
    return (int)(nan + pos_inf + neg_inf);
}

/* The block with another number in the place of all of this size and above. */
INLINE void OF(replace)(const MEMORY *x, int num, UNSIGNED size, UNSIGNED other, MEMORY *out)
{
    for (int i = 0; i < num; i++)
        out[i] = SIZE(x[i]) < size ? x[i] : other;
}

INLINE UNSIGNED OF(first_finite)(const MEMORY *x)
{
    while (SIZE(*x) >= INF)
        x++;
    return *x;
}

INLINE void OF(block)(const MEMORY *x, int num, uint64_t start, const Weights *weights, Found *found)
{
    if (num < 1)
        __builtin_unreachable();
    MEMORY finite[BLOCK];
    const MEMORY *summed = x;
    OF(Range) range = OF(range)(x, num);
    if (range.most >= (SIGNED)INF || range.most_bits >= (SIGN | INF)) {
        int num_odd = OF(count_odd)(x, num, found);
        if (num_odd == num)
            return;
        OF(replace)(x, num, INF, OF(first_finite)(x), finite);
        range = OF(range)(finite, num);
        OF(replace)(x, num, INF, 0, finite); /* which adds nothing to the sums */
        summed = finite;
        found->num_finite -= num_odd;
    }
    found->num_finite += num;
    OF(add)(summed, num, &found->sums);
    if (range.most >= (SIGNED)MASK || range.most_bits >= (SIGN | MASK)) {
        OF(replace)(x, num, MASK, 0, finite);
        summed = finite;
    }
    OF(project)(summed, num, start, weights, found->projections);
    if (range.least_bits < NORMAL || (range.least < 0 && SIZE(range.least) < NORMAL))
        OF(count_near_zero)(x, num, found);
    found->least = range.least < found->least ? range.least : found->least;
    found->most = range.most > found->most ? range.most : found->most;
    found->least_bits = range.least_bits < found->least_bits ? range.least_bits : found->least_bits;
    found->most_bits = range.most_bits > found->most_bits ? range.most_bits : found->most_bits;
}

INLINE double OF(number)(UNSIGNED bits)
{
    UNSIGNED four[4] = {bits, bits, bits, bits};
    return OF(wide)(four)[0];
}

INLINE void OF(extremes)(const Found *found, double *low, double *high)
{
    bool any_negative = (UNSIGNED)found->most_bits >= SIGN, any_positive = found->most >= 0;
    *low = OF(number)((UNSIGNED)(any_negative ? found->most_bits : found->least_bits));
    *high = OF(number)((UNSIGNED)(any_positive ? found->most : found->least));
}

#undef SIZE
#undef NAME
#undef SIGNED
#undef UNSIGNED
#undef MEMORY
#undef SIGN
#undef INF
#undef NORMAL
#undef MASK
