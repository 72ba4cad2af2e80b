/* y = x W' + b for bfloat16 x and W in codes (see coded.h), fp32 sums.
 *
 * Few rows: a code's value is exact in bfloat16, so a group is summed by VDPBF16PS over codes and scaled once, in fp32;
 * its zero meets the sum of the group's x. Codes become values by a table in registers: bits of the index above the
 * table's size do not matter, so nothing need be masked off. A byte needs a table of eight registers; one or two rows
 * are faster with its upper and lower four bits apart. Many rows: each panel is unpacked once, scaled and rounded as a
 * model in 16 bits is, and multiplied as those are (linear_bf16.c), by AMX where there is any.
 */

#include "../coded.h"
#include "tile.h"

#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))
#define CHAINS_MAX 4 /* sums of one row and column side by side: a multiplication takes five cycles */
#define TABLE_MAX 8
#define WORDS_MAX 5
#define SPLIT_ROWS 2 /* with more, multiplying twice costs more than looking up a byte */
#define UNPACKED_ROWS (ROWS_MAX + 1) /* from here on panels are unpacked once, which rounds as 16-bit weights do */
#define UNPACKED_ROWS_BY_TILES 8 /* the same where there is AMX */

/* How codes stand in words, and how they become values. */
enum layout {
    NIBBLES, /* eight codes of four bits in a word */
    FIVES,   /* 32 inputs: four words of lower bits, and one with the fifth bit of each */
    SPLIT,   /* four signed bytes, whose upper and lower four bits are looked up and multiplied apart */
    BYTES,   /* four bytes of any kind */
};

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

INLINE struct table table_of(const int layout, const struct coded *weights)
{
    struct table table;
    const int parts = layout == NIBBLES || layout == FIVES ? 1 : layout == SPLIT ? 2 : TABLE_MAX;
    const bfloat16 *values = (const bfloat16 *)weights->values + (layout == SPLIT ? 32 * TABLE_MAX : 0);
    for (int i = 0; i < parts; i++)
        table.part[i] = _mm512_loadu_si512(values + 32 * i);
    return table;
}

INLINE int words_of(const int layout)
{
    return layout == FIVES ? 5 : 1;
}

INLINE int inputs_of(const int layout)
{
    return layout == NIBBLES ? 8 : layout == FIVES ? 32 : 4;
}

/* Products of a pair of inputs that are made of the words. */
INLINE int steps_of(const int layout)
{
    return layout == SPLIT ? 4 : inputs_of(layout) / 2;
}

INLINE __m512i shifted(__m512i lanes, const int bits)
{
    return bits > 0 ? _mm512_srli_epi16(lanes, bits) : bits < 0 ? _mm512_slli_epi16(lanes, -bits) : lanes;
}

/* The values of the lowest eight bits of each lane. */
INLINE __m512i bytes_looked_up(__m512i lanes, struct table table)
{
    __m512i quarter[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        quarter[i] = _mm512_permutex2var_epi16(table.part[2 * i], lanes, table.part[2 * i + 1]);
    __mmask32 bit6 = _mm512_test_epi16_mask(lanes, _mm512_set1_epi16(64));
    __mmask32 bit7 = _mm512_test_epi16_mask(lanes, _mm512_set1_epi16(128));
    __m512i low = _mm512_mask_blend_epi16(bit6, quarter[0], quarter[1]);
    __m512i high = _mm512_mask_blend_epi16(bit6, quarter[2], quarter[3]);
    return _mm512_mask_blend_epi16(bit7, low, high);
}

/* What a step multiplies with: 16 columns of a pair of inputs. */
INLINE __m512bh values_of(const int layout, const int step, __m512i word[][VECTORS], int v, struct table table)
{
    const __m512i fifth = _mm512_set1_epi16(16);
    __m512i lanes = word[0][v];
    switch (layout) {
    case NIBBLES: lanes = _mm512_permutexvar_epi16(shifted(lanes, 4 * step), table.part[0]); break;
    case FIVES:
        lanes = _mm512_ternarylogic_epi32(fifth, shifted(word[4][v], step - 4),
                                          shifted(word[step / 4][v], 4 * (step % 4)), 0xca);
        lanes = _mm512_permutexvar_epi16(lanes, table.part[0]);
        break;
    case SPLIT: lanes = _mm512_permutexvar_epi16(shifted(lanes, 4 * step), table.part[step % 2]); break;
    case BYTES: lanes = bytes_looked_up(shifted(lanes, 8 * step), table); break;
    }
    return (__m512bh)lanes;
}

/* Read a piece's words; returns what follows them. */
INLINE const uint8_t *load_words(const int layout, const uint8_t *codes, __m512i word[][VECTORS])
{
#pragma GCC unroll 5
    for (int w = 0; w < words_of(layout); w++, codes += PANEL_BYTES)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            word[w][v] = _mm512_loadu_si512(codes + 64 * v);
            _mm_prefetch((const char *)codes + 64 * v + AHEAD_BYTES, _MM_HINT_T0);
        }
    return codes;
}

/* sum += x W over one group. */
INLINE const uint8_t *
multiply_group(const int rows, const int layout, const int chains, const bfloat16 *x, long x_stride,
               const uint8_t *codes, long group, struct table table, __m512 sum[CHAINS_MAX][ROWS_MAX][VECTORS])
{
    const int steps = steps_of(layout), inputs = inputs_of(layout);
    for (long input = 0; input < group; input += inputs) {
        __m512i word[WORDS_MAX][VECTORS];
        codes = load_words(layout, codes, word);
#pragma GCC unroll 16
        for (int step = 0; step < steps; step++) {
            __m512bh column[VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                column[v] = values_of(layout, step, word, v, table);
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++) {
                __m512bh value = pair_of(x + row * x_stride + input + 2 * (layout == SPLIT ? step / 2 : step));
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    sum[step % chains][row][v] = _mm512_dpbf16_ps(sum[step % chains][row][v], value, column[v]);
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
INLINE void multiply(const int rows, const int layout, const struct panel panel, const struct rows at)
{
    const int steps = steps_of(layout), chains = rows == 1 ? (steps < CHAINS_MAX ? steps : CHAINS_MAX) : rows <= 3 && steps > 1 ? 2 : 1;
    const long group = panel.weights->group, groups = panel.weights->inputs / group;
    const int has_zeros = panel.weights->has_zeros;
    const struct table table = table_of(layout, panel.weights);
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
        codes = multiply_group(rows, layout, chains, at.x + g * group, at.x_stride, codes, group, table, sum);
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

#define FOR_FEW_ROWS(rows, layout)                                                                                     \
    switch (rows) {                                                                                                    \
    case 1: multiply(1, layout, panel, at); break;                                                                     \
    case 2: multiply(2, layout, panel, at); break;                                                                     \
    case 3: multiply(3, layout, panel, at); break;                                                                     \
    case 4: multiply(4, layout, panel, at); break;                                                                     \
    case 5: multiply(5, layout, panel, at); break;                                                                     \
    case 6: multiply(6, layout, panel, at); break;                                                                     \
    case 8: multiply(8, layout, panel, at); break;                                                                     \
    case ROWS_MAX: multiply(ROWS_MAX, layout, panel, at); break;                                                       \
    }

static void multiply_rows(long rows, enum layout layout, struct panel panel, struct rows at)
{
    switch (layout) {
    case NIBBLES: FOR_FEW_ROWS(rows, NIBBLES) break;
    case FIVES: FOR_FEW_ROWS(rows, FIVES) break;
    case SPLIT:
        if (rows == 1)
            multiply(1, SPLIT, panel, at);
        else
            multiply(2, SPLIT, panel, at);
        break;
    case BYTES: FOR_FEW_ROWS(rows, BYTES) break;
    }
}

static enum layout layout_of(const struct coded *weights, long rows)
{
    switch (weights->kind) {
    case INT4:
    case FP4: return NIBBLES;
    case INT5: return FIVES;
    case INT8: return rows <= SPLIT_ROWS ? SPLIT : BYTES;
    }
    return BYTES;
}

static int bits_of(enum kind kind)
{
    return kind == INT4 || kind == FP4 ? 4 : kind == INT5 ? 5 : 8;
}

/* Rows for the next pass: every number that there is code for costs the compiler half a second. */
static long few_rows_for_pass(long left)
{
    return left >= ROWS_MAX ? ROWS_MAX : left >= 8 ? 8 : left >= 6 ? 6 : left;
}

/* Scaled values of a step: 16 columns of a pair of inputs. */
INLINE __m512i scaled(__m512bh pair, __m512 scale, __m512 zero)
{
    __m512i bits = (__m512i)pair;
    __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)));
    __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(even, scale, zero));
    __m256i high = (__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(odd, scale, zero));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* A panel's weights, rounded to bfloat16, in the order in which tile.h multiplies them. */
INLINE void unpack(const int layout, struct panel panel, bfloat16 *values)
{
    const struct table table = table_of(layout, panel.weights);
    const long group = panel.weights->group;
    const int has_zeros = panel.weights->has_zeros;
    const uint8_t *codes = panel.codes;
    const bfloat16 *scales = panel.scales;
    for (long first = 0; first < panel.weights->inputs; first += group, scales += (1 + has_zeros) * PANEL)
        for (long input = 0; input < group; input += inputs_of(layout)) {
            __m512i word[WORDS_MAX][VECTORS];
            codes = load_words(layout, codes, word);
#pragma GCC unroll 16
            for (int step = 0; step < steps_of(layout); step++, values += 2 * PANEL)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++) {
                    __m512 zero = has_zeros ? widened(scales + PANEL + 16 * v) : _mm512_setzero_ps();
                    __m512bh pair = values_of(layout, step, word, v, table);
                    _mm512_storeu_si512(values + 32 * v, scaled(pair, widened(scales + 16 * v), zero));
                }
        }
}

static void unpack_panel(struct panel panel, bfloat16 *values)
{
    switch (layout_of(panel.weights, ROWS_MAX)) {
    case NIBBLES: unpack(NIBBLES, panel, values); break;
    case FIVES: unpack(FIVES, panel, values); break;
    default: unpack(BYTES, panel, values);
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
static void multiply_codes(long rows, struct panel panel, struct rows at)
{
    for (long row = 0; row < rows;) {
        long count = few_rows_for_pass(rows - row);
        multiply_rows(count, layout_of(panel.weights, count), panel, at);
        at.x += count * at.x_stride;
        at.y += count * at.y_stride;
        at.sums += at.sums ? count * at.sums_stride : 0;
        row += count;
    }
}

static struct panel panel_of(const struct coded *weights, const float *bias, long first)
{
    const long groups = weights->inputs / weights->group;
    return (struct panel){weights, weights->codes + first * weights->inputs * bits_of(weights->kind) / 8,
                          (const bfloat16 *)weights->scales + first * groups * (1 + weights->has_zeros),
                          bias ? bias + first : 0, weights->outputs - first};
}

/* Many rows: each panel is unpacked once. */
static int multiply_unpacked(const bfloat16 *x, long rows, const struct coded *weights, const float *bias, bfloat16 *y,
                             int by_tiles, int threads)
{
    const long inputs = weights->inputs, outputs = weights->outputs;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        bfloat16 *values = aligned_alloc(64, (size_t)inputs * PANEL * sizeof *values);
        failed = !values;
        begin_panels(by_tiles, rows);
#pragma omp for
        for (long first = 0; first < outputs; first += PANEL) {
            if (failed)
                continue;
            struct panel panel = panel_of(weights, bias, first);
            unpack_panel(panel, values);
            multiply_panel(by_tiles, x, rows, inputs, values, panel.bias, panel.columns, y + first, outputs, 0);
        }
        end_panels(by_tiles);
        free(values);
    }
    return failed;
}

/* Few rows: codes are looked up where they are multiplied. */
static int multiply_coded(const bfloat16 *x, long rows, const struct coded *weights, const float *bias, bfloat16 *y,
                          int threads)
{
    const long groups = weights->inputs / weights->group, outputs = weights->outputs;
    float *sums = 0;
    if (weights->has_zeros) {
        sums = malloc((size_t)(rows * groups) * sizeof *sums);
        if (!sums)
            return 1;
        sum_groups(x, rows, weights, sums);
    }
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long first = 0; first < outputs; first += PANEL)
        multiply_codes(rows, panel_of(weights, bias, first),
                       (struct rows){x, sums, y + first, weights->inputs, groups, outputs});
    free(sums);
    return 0;
}

/* x [rows, inputs], y [rows, outputs], bias per output or null. Returns 0, or 1 where there was no memory. */
int linear_coded_bf16(const bfloat16 *x, long rows, const struct coded *weights, const float *bias, bfloat16 *y,
                      int threads)
{
    const int by_tiles = panels_by_tiles(rows, weights->inputs);
    if (rows >= (by_tiles ? UNPACKED_ROWS_BY_TILES : UNPACKED_ROWS))
        return multiply_unpacked(x, rows, weights, bias, y, by_tiles, threads);
    return multiply_coded(x, rows, weights, bias, y, threads);
}
