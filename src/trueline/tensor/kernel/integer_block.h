/* Statistics of a block of integers. A template, included for each type with
 *   NAME      of the type, and of add_NAME in wide.h
 *   MEMORY    the type
 *   NARROW    defined for 8 and 16 bits, of which sums of a block are exact as integers
 */

INLINE void OF(block)(const MEMORY *x, int num, uint64_t start, const Weights *weights, Found *found)
{
    MEMORY least = x[0], most = least;
    int zero = 0;
    for (int i = 0; i < num; i++) {
        MEMORY number = x[i];
        least = number < least ? number : least;
        most = number > most ? number : most;
        zero += number == 0;
    }
#ifdef NARROW
    int32_t sum = 0;
    int64_t square = 0;
    for (int i = 0; i < num; i++) {
        sum += x[i];
        square += (int64_t)x[i] * x[i];
    }
    found->sums.sum[0][0] += sum;
    found->sums.square[0][0] += (double)square;
#else
    OF(add)(x, num, &found->sums);
#endif
    OF(project)(x, num, start, weights, found->projections);
    found->num_finite += num;
    found->zero += zero;
    found->least = (int64_t)least < found->least ? (int64_t)least : found->least;
    found->most = (int64_t)most > found->most ? (int64_t)most : found->most;
    found->least_bits = (uint64_t)least < found->least_bits ? (uint64_t)least : found->least_bits;
    found->most_bits = (uint64_t)most > found->most_bits ? (uint64_t)most : found->most_bits;
}

#undef NAME
#undef MEMORY
#undef NARROW
