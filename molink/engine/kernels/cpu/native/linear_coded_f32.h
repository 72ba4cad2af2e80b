/* y = x W' + b for fp32 x and W in codes (see coded.h), in whatever vectors the including file defines.
 *
 * A group is summed over the codes' values, which are exact, and scaled once. Codes of 4 bits that are whole numbers
 * are summed as they stand, 0 to 15; eight times the scale then comes off the zero. W is read in strips of as many of a
 * panel's columns as two vectors hold.
 */

#include "coded.h"

#include <stdlib.h>

#define VECTORS 2
#define CHAINS_MAX 4 /* sums of one row and column side by side: a multiplication takes four cycles */

struct rows {
    const float *x;
    const float *sums; /* of each row's groups */
    float *y;
    long x_stride, sums_stride, y_stride;
};

struct strip {
    const struct coded *weights;
    const uint8_t *codes;
    const float *scales;
    const float *bias;
    long columns;
};

/* The value of each column's code that starts at bit `shift` of its word. */
INLINE vector values_of(const int kind, const int shift, words_vector words, const float *values)
{
    if (kind == INT4)
        return whole_numbers(masked(lowered(words, shift), 15));
    if (kind == INT8)
        return whole_numbers(lowered_signed(raised(words, 24 - shift), 24));
    if (kind == FP4)
        return of_sixteen(values, lowered(words, shift));
    /* The four bits of an exponent and three of a mantissa, put where a float has them; its bias is larger by 120. */
    words_vector code = raised(words, 24 - shift);
    words_vector bits = either(lowered(masked(code, 0x7f000000), 4), masked(code, (int)0x80000000));
    return multiplied(as_floats(bits), 0x1p120f);
}

/* sum += x W over one group. */
INLINE const uint8_t *
multiply_group(const int rows, const int kind, const int chains, const float *x, long x_stride, const uint8_t *codes,
               long group, const float *values, vector sum[CHAINS_MAX][ROWS_MAX][VECTORS])
{
    const int bits = kind == INT4 || kind == FP4 ? 4 : 8, inputs = 32 / bits;
    for (long start = 0; start < group; start += inputs, codes += PANEL_BYTES) {
        words_vector words[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            words[v] = load_words(codes + 4 * LANES * v);
        _mm_prefetch((const char *)codes + AHEAD_BYTES, _MM_HINT_T0);
        if (LANES * VECTORS == PANEL_COLUMNS)
            _mm_prefetch((const char *)codes + AHEAD_BYTES + 64, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int input = 0; input < inputs; input++) {
            vector column[VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                column[v] = values_of(kind, 16 * (input % 2) + bits * (input / 2), words[v], values);
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++) {
                vector value = everywhere(x[row * x_stride + start + input]);
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    sum[input % chains][row][v] = fused(value, column[v], sum[input % chains][row][v]);
            }
        }
    }
    return codes;
}

INLINE void add_group(const int rows, const int kind, const int chains, const struct strip strip, long g,
                      const struct rows at, vector sum[CHAINS_MAX][ROWS_MAX][VECTORS],
                      vector total[ROWS_MAX][VECTORS])
{
    const int has_zeros = strip.weights->has_zeros;
    const float *scales = strip.scales + g * (1 + has_zeros) * PANEL_COLUMNS;
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
        vector scale = load(scales + LANES * v);
        vector zero = has_zeros ? load(scales + PANEL_COLUMNS + LANES * v) : zeros();
        if (kind == INT4)
            zero = fused(everywhere(-8), scale, zero);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            vector all = sum[0][row][v];
#pragma GCC unroll 3
            for (int chain = 1; chain < chains; chain++)
                all = added(all, sum[chain][row][v]);
            total[row][v] = fused(scale, all, total[row][v]);
            if (at.sums)
                total[row][v] = fused(zero, everywhere(at.sums[row * at.sums_stride + g]), total[row][v]);
        }
    }
}

INLINE void store_some(float *y, vector values, long columns)
{
    float each[LANES];
    store(each, values);
    for (long column = 0; column < columns; column++)
        y[column] = each[column];
}

/* `rows` rows of x, a constant where this is inlined, against one strip. */
INLINE void multiply(const int rows, const int kind, const struct strip strip, const struct rows at)
{
    const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    const long group = strip.weights->group, groups = strip.weights->inputs / group;
    const uint8_t *codes = strip.codes;
    vector total[ROWS_MAX][VECTORS], sum[CHAINS_MAX][ROWS_MAX][VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            total[row][v] = strip.bias ? load(strip.bias + LANES * v) : zeros();
    for (long g = 0; g < groups; g++) {
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++)
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    sum[chain][row][v] = zeros();
        codes = multiply_group(rows, kind, chains, at.x + g * group, at.x_stride, codes, group, strip.weights->values,
                               sum);
        add_group(rows, kind, chains, strip, g, at, sum, total);
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            if (strip.columns >= LANES * (v + 1))
                store(at.y + row * at.y_stride + LANES * v, total[row][v]);
            else
                store_some(at.y + row * at.y_stride + LANES * v, total[row][v], strip.columns - LANES * v);
}

#define FOR_ROWS(rows, kind)                                                                                           \
    switch (rows) {                                                                                                    \
    case 1: multiply(1, kind, strip, at); break;                                                                       \
    case 2: multiply(2, kind, strip, at); break;                                                                       \
    case 4: multiply(4, kind, strip, at); break;                                                                       \
    case ROWS_MAX: multiply(ROWS_MAX, kind, strip, at); break;                                                         \
    }

static void multiply_rows(long rows, struct strip strip, struct rows at)
{
    switch (strip.weights->kind) {
    case INT4: FOR_ROWS(rows, INT4) break;
    case FP4: FOR_ROWS(rows, FP4) break;
    case INT8: FOR_ROWS(rows, INT8) break;
    case FP8: FOR_ROWS(rows, FP8) break;
    }
}

/* Rows for the next pass: a compiler needs a second for each number that there is code for, so there are four. */
static long rows_for_pass(long left)
{
    return left >= ROWS_MAX ? ROWS_MAX : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* The sum of each row's groups, [rows, groups]. */
static void sum_groups(const float *x, long rows, const struct coded *weights, float *sums)
{
    long groups = weights->inputs / weights->group;
    for (long at = 0; at < rows * groups; at++, x += weights->group) {
        vector sum = zeros();
        for (long input = 0; input < weights->group; input += LANES)
            sum = added(sum, load(x + input));
        float lanes[LANES];
        store(lanes, sum);
        sums[at] = 0;
        for (int lane = 0; lane < LANES; lane++)
            sums[at] += lanes[lane];
    }
}

/* x [rows, inputs], y [rows, outputs], bias per output or null. Returns 0, or 1 where there was no memory. */
int linear_coded_f32(const float *x, long rows, const struct coded *weights, const float *bias, float *y, int threads)
{
    const long width = LANES * VECTORS, groups = weights->inputs / weights->group, outputs = weights->outputs;
    const int bits = weights->kind == INT4 || weights->kind == FP4 ? 4 : 8;
    float *sums = 0;
    if (weights->has_zeros || weights->kind == INT4) {
        sums = malloc((size_t)(rows * groups) * sizeof *sums);
        if (!sums)
            return 1;
        sum_groups(x, rows, weights, sums);
    }
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long first = 0; first < outputs; first += width) {
        long panel_start = first / PANEL_COLUMNS * PANEL_COLUMNS, inside = first - panel_start;
        struct strip strip = {
            weights, weights->codes + panel_start * weights->inputs * bits / 8 + 4 * inside,
            (const float *)weights->scales + panel_start * groups * (1 + weights->has_zeros) + inside,
            bias ? bias + first : 0, outputs - first};
        for (long row = 0; row < rows;) {
            long count = rows_for_pass(rows - row);
            struct rows at = {x + row * weights->inputs, sums ? sums + row * groups : 0, y + row * outputs + first,
                              weights->inputs, groups, outputs};
            multiply_rows(count, strip, at);
            row += count;
        }
    }
    free(sums);
    return 0;
}
