/* `linear_bf16` in the vectors of AVX2 and FMA, for CPUs without bfloat16 instructions: most PCs for games.
 *
 * W lies in the same panels as for AVX512: 32 of its rows, pairs of inputs side by side. A word is then two weights of
 * one output, and a bfloat16 is the upper half of an fp32: a shift gives the first, a mask the second. Each sum adds up
 * its inputs in order whatever the number of rows, so a row's result does not depend on its company.
 */

#include "bfloat16.h"

#define PANEL 32
#define VECTORS (PANEL / LANES)
#define ROWS_MAX 5 /* with two vectors of outputs: ten sums; six rows push some out of sixteen registers */
#define AHEAD_BYTES 2048

struct strip {
    const bfloat16 *weights; /* of the first pair of inputs */
    const float *bias;       /* one per output of the strip, or null */
    long pairs;              /* input channels / 2 */
    long columns;            /* outputs that count; the last panel is padded */
};

INLINE vector input_of(const int second, words_vector pairs)
{
    return as_floats(second ? masked(pairs, (int)0xffff0000) : raised(pairs, 16));
}

INLINE words_vector pair_everywhere(const bfloat16 *from)
{
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return _mm256_set1_epi32(pair);
}

INLINE void store_some(bfloat16 *y, vector values, long columns)
{
    bfloat16 each[LANES];
    store_rounded(each, values);
    for (long column = 0; column < columns && column < LANES; column++)
        y[column] = each[column];
}

/* sum += x W of the first or second input of a pair. */
INLINE void add_input(const int rows, const int vectors, const int second, const bfloat16 *weights, const bfloat16 *x,
                      long inputs, vector sum[ROWS_MAX][VECTORS])
{
    vector column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        column[v] = input_of(second, load_words((const uint8_t *)(weights + 2 * LANES * v)));
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++) {
        vector value = input_of(second, pair_everywhere(x + row * inputs));
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[row][v] = fused(value, column[v], sum[row][v]);
    }
}

/* `rows` rows of x against one strip of `vectors` vectors of outputs; both are constants where this is inlined. */
INLINE void multiply(const int rows, const int vectors, struct strip strip, const bfloat16 *x, bfloat16 *y,
                     long y_stride)
{
    vector sum[ROWS_MAX][VECTORS];
    const long inputs = 2 * strip.pairs;
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[row][v] = strip.bias ? load(strip.bias + LANES * v) : zeros();
    for (long pair = 0; pair < strip.pairs; pair++) {
        const bfloat16 *weights = strip.weights + 2 * PANEL * pair;
        _mm_prefetch((const char *)weights + AHEAD_BYTES, _MM_HINT_T0);
        if (vectors == VECTORS)
            _mm_prefetch((const char *)weights + AHEAD_BYTES + 64, _MM_HINT_T0);
        add_input(rows, vectors, 0, weights, x + 2 * pair, inputs, sum);
        __asm__ volatile("" ::: "memory"); /* Words are read again: kept, they would push sums out of registers. */
        add_input(rows, vectors, 1, weights, x + 2 * pair, inputs, sum);
    }
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            if (strip.columns >= LANES * (v + 1))
                store_rounded(y + row * y_stride + LANES * v, sum[row][v]);
            else
                store_some(y + row * y_stride + LANES * v, sum[row][v], strip.columns - LANES * v);
}

/* More rows than the whole panel has registers for: its halves one after the other. */
INLINE void multiply_halves(const int rows, struct strip strip, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    const int half = VECTORS / 2;
    struct strip second = {strip.weights + 2 * LANES * half, strip.bias ? strip.bias + LANES * half : 0, strip.pairs,
                           strip.columns - LANES * half};
    multiply(rows, half, strip, x, y, y_stride);
    multiply(rows, half, second, x, y + LANES * half, y_stride);
}

/* The next rows of x against a panel; their number. Up to four read it fastest in whole passes of two. */
static long multiply_rows(long rows, struct strip strip, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    if (rows >= ROWS_MAX) {
        multiply_halves(ROWS_MAX, strip, x, y, y_stride);
        return ROWS_MAX;
    }
    if (rows >= 2) {
        multiply(2, VECTORS, strip, x, y, y_stride);
        return 2;
    }
    multiply(1, VECTORS, strip, x, y, y_stride);
    return 1;
}

/* x [rows, inputs], W in panels, bias fp32 per output or null, y [rows, outputs]. */
void linear_bf16(const bfloat16 *x, long rows, long inputs, const bfloat16 *weights, const float *bias, bfloat16 *y,
                 long outputs, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long first = 0; first < outputs; first += PANEL) {
        struct strip strip = {weights + first * inputs, bias ? bias + first : 0, inputs / 2, outputs - first};
        for (long row = 0; row < rows;)
            row += multiply_rows(rows - row, strip, x + row * inputs, y + row * outputs + first, outputs);
    }
}
