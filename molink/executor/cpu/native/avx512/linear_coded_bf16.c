/* y = x W' + b for bfloat16 x and W in codes (see coded.h), fp32 sums.
 *
 * A code's value is exact in bfloat16, so a group is summed by VDPBF16PS over codes and scaled once, in fp32; its zero
 * meets the sum of the group's x. Codes become values by a table in registers: bits of the index above the table's
 * size do not matter, so nothing need be masked off.
 */

#include "../coded.h"
#include "tile.h"

#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))
#define CHAINS_MAX 4 /* sums of one row and column side by side: a multiplication takes five cycles */
#define TABLE_MAX 8
#define UNPACKED_ROWS ROWS_MAX /* with more, codes of 8 bits are looked up once and not in every pass */

struct table {
    __m512i part[TABLE_MAX];
};

struct rows {
    const bfloat16 *x;
    const float *sums; /* of each row's groups */
    bfloat16 *y;
    long x_stride, sums_stride, y_stride;
};

struct panel {
    const struct coded *weights;
    const uint8_t *codes;
    const bfloat16 *scales;
    const float *bias;
    long columns;
};

INLINE __m512 widened(const bfloat16 *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

INLINE struct table table_of(const struct coded *weights)
{
    struct table table;
    if (weights->kind == INT4 || weights->kind == FP4) {
        __m256i values = _mm256_loadu_si256(weights->values);
        table.part[0] = _mm512_inserti64x4(_mm512_castsi256_si512(values), values, 1);
    } else {
        for (int i = 0; i < TABLE_MAX; i++)
            table.part[i] = _mm512_loadu_si512((const bfloat16 *)weights->values + 32 * i);
    }
    return table;
}

/* The values of the lowest code of each 16-bit lane; with 16 bits the lane itself is the value. */
INLINE __m512bh values_of(const int bits, __m512i lanes, struct table table)
{
    if (bits == 16)
        return (__m512bh)lanes;
    if (bits == 4)
        return (__m512bh)_mm512_permutexvar_epi16(lanes, table.part[0]);
    __m512i quarter[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        quarter[i] = _mm512_permutex2var_epi16(table.part[2 * i], lanes, table.part[2 * i + 1]);
    __mmask32 bit6 = _mm512_test_epi16_mask(lanes, _mm512_set1_epi16(64));
    __mmask32 bit7 = _mm512_test_epi16_mask(lanes, _mm512_set1_epi16(128));
    __m512i low = _mm512_mask_blend_epi16(bit6, quarter[0], quarter[1]);
    __m512i high = _mm512_mask_blend_epi16(bit6, quarter[2], quarter[3]);
    return (__m512bh)_mm512_mask_blend_epi16(bit7, low, high);
}

/* sum += x W over one group. */
INLINE const uint8_t *
multiply_group(const int rows, const int bits, const int chains, const bfloat16 *x, long x_stride, const uint8_t *codes,
               long group, struct table table, __m512 sum[CHAINS_MAX][ROWS_MAX][VECTORS])
{
    const int pairs = 16 / bits;
    for (long input = 0; input < group; input += 2 * pairs, codes += PANEL_BYTES) {
        __m512i word[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            word[v] = _mm512_loadu_si512(codes + 64 * v);
            _mm_prefetch((const char *)codes + 64 * v + AHEAD_BYTES, _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (int pair = 0; pair < pairs; pair++) {
            __m512bh column[VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                column[v] = values_of(bits, pair ? _mm512_srli_epi16(word[v], bits * pair) : word[v], table);
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++) {
                __m512bh value = pair_of(x + row * x_stride + input + 2 * pair);
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    sum[pair % chains][row][v] = _mm512_dpbf16_ps(sum[pair % chains][row][v], value, column[v]);
            }
        }
    }
    return codes;
}

INLINE __m512 joined(const int chains, __m512 sum[CHAINS_MAX][ROWS_MAX][VECTORS], int row, int v)
{
    __m512 all = sum[0][row][v];
#pragma GCC unroll 3
    for (int chain = 1; chain < chains; chain++)
        all = _mm512_add_ps(all, sum[chain][row][v]);
    return all;
}

/* `rows` rows of x, a constant where this is inlined, against one panel. */
INLINE void multiply(const int rows, const int bits, const struct panel panel, const struct rows at)
{
    const int chains = rows == 1 ? 16 / bits : rows <= 3 && bits < 16 ? 2 : 1;
    const long group = panel.weights->group, groups = panel.weights->inputs / group;
    const int has_zeros = panel.weights->has_zeros;
    const struct table table = table_of(panel.weights);
    const uint8_t *codes = panel.codes;
    const bfloat16 *scales = panel.scales;
    __m512 total[ROWS_MAX][VECTORS], sum[CHAINS_MAX][ROWS_MAX][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            total[row][v] = panel.bias ? _mm512_loadu_ps(panel.bias + 16 * v) : _mm512_setzero_ps();
    for (long g = 0; g < groups; g++, scales += (1 + has_zeros) * PANEL) {
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++)
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    sum[chain][row][v] = _mm512_setzero_ps();
        codes = multiply_group(rows, bits, chains, at.x + g * group, at.x_stride, codes, group, table, sum);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            __m512 scale = widened(scales + 16 * v);
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++)
                total[row][v] = _mm512_fmadd_ps(scale, joined(chains, sum, row, v), total[row][v]);
            if (!has_zeros)
                continue;
            __m512 zero = widened(scales + PANEL + 16 * v);
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++)
                total[row][v] = _mm512_fmadd_ps(zero, _mm512_set1_ps(at.sums[row * at.sums_stride + g]), total[row][v]);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm256_mask_storeu_epi16(at.y + row * at.y_stride + 16 * v, first_lanes(panel.columns - 16 * v),
                                     (__m256i)_mm512_cvtneps_pbh(total[row][v]));
}

#define FOR_FEW_ROWS(rows, bits)                                                                                       \
    switch (rows) {                                                                                                    \
    case 1: multiply(1, bits, panel, at); break;                                                                       \
    case 2: multiply(2, bits, panel, at); break;                                                                       \
    case 3: multiply(3, bits, panel, at); break;                                                                       \
    case 4: multiply(4, bits, panel, at); break;                                                                       \
    case 5: multiply(5, bits, panel, at); break;                                                                       \
    case 6: multiply(6, bits, panel, at); break;                                                                       \
    case 8: multiply(8, bits, panel, at); break;                                                                       \
    case ROWS_MAX: multiply(ROWS_MAX, bits, panel, at); break;                                                         \
    }

static void multiply_rows(long rows, int bits, struct panel panel, struct rows at)
{
    switch (bits) {
    case 4: FOR_FEW_ROWS(rows, 4) break;
    case 8: FOR_FEW_ROWS(rows, 8) break;
    case 16: FOR_FEW_ROWS(rows, 16) break;
    }
}

/* Rows for the next pass: every number that there is code for costs the compiler half a second. Sixteen are two passes
 * of eight, which take turns better than twelve and four. */
static long few_rows_for_pass(long left)
{
    if (left >= ROWS_MAX && left != 16)
        return ROWS_MAX;
    return left >= 8 ? 8 : left >= 6 ? 6 : left;
}

/* A panel's codes of 8 bits as values, in the order in which they are multiplied. */
static void unpack_panel(struct panel panel, bfloat16 *values)
{
    const struct table table = table_of(panel.weights);
    const uint8_t *codes = panel.codes;
    for (long input = 0; input < panel.weights->inputs; input += 4, codes += PANEL_BYTES, values += 4 * PANEL)
        for (int v = 0; v < VECTORS; v++) {
            __m512i word = _mm512_loadu_si512(codes + 64 * v);
            _mm_prefetch((const char *)codes + 64 * v + AHEAD_BYTES, _MM_HINT_T0);
            _mm512_storeu_si512(values + 32 * v, (__m512i)values_of(8, word, table));
            _mm512_storeu_si512(values + 2 * PANEL + 32 * v, (__m512i)values_of(8, _mm512_srli_epi16(word, 8), table));
        }
}

/* The sum of each row's groups, [rows, groups]. */
static void sum_groups(const bfloat16 *x, long rows, const struct coded *weights, float *sums)
{
    long groups = weights->inputs / weights->group;
    for (long at = 0; at < rows * groups; at++, x += weights->group) {
        __m512 sum = _mm512_setzero_ps();
        for (long input = 0; input < weights->group; input += 16)
            sum = _mm512_add_ps(sum, widened(x + input));
        sums[at] = _mm512_reduce_add_ps(sum);
    }
}

/* All rows of x against one panel. */
static void multiply_panel(long rows, int bits, struct panel panel, struct rows at)
{
    for (long row = 0; row < rows;) {
        long count = few_rows_for_pass(rows - row);
        multiply_rows(count, bits, panel, at);
        at.x += count * at.x_stride;
        at.y += count * at.y_stride;
        at.sums += at.sums ? count * at.sums_stride : 0;
        row += count;
    }
}

/* x [rows, inputs], y [rows, outputs], bias per output or null. Returns 0, or 1 where there was no memory. */
int linear_coded_bf16(const bfloat16 *x, long rows, const struct coded *weights, const float *bias, bfloat16 *y,
                      int threads)
{
    const long inputs = weights->inputs, groups = inputs / weights->group, outputs = weights->outputs;
    const int bits = weights->kind == INT4 || weights->kind == FP4 ? 4 : 8;
    const int unpacks = bits == 8 && rows > UNPACKED_ROWS;
    int failed = 0;
    float *sums = 0;
    if (weights->has_zeros) {
        sums = malloc((size_t)(rows * groups) * sizeof *sums);
        if (!sums)
            return 1;
        sum_groups(x, rows, weights, sums);
    }
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        bfloat16 *values = unpacks ? malloc((size_t)inputs * PANEL * sizeof *values) : 0;
        failed = unpacks && !values;
#pragma omp for
        for (long first = 0; first < outputs; first += PANEL) {
            struct panel panel = {weights, weights->codes + first * inputs * bits / 8,
                                  (const bfloat16 *)weights->scales + first * groups * (1 + weights->has_zeros),
                                  bias ? bias + first : 0, outputs - first};
            struct rows at = {x, sums, y + first, inputs, groups, outputs};
            if (values) {
                unpack_panel(panel, values);
                panel.codes = (const uint8_t *)values;
            }
            if (!failed)
                multiply_panel(rows, values ? 16 : bits, panel, at);
        }
        free(values);
    }
    free(sums);
    return failed;
}
