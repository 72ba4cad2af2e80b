/* The product that everything here is made of: a few rows of x against 32 columns, in registers.
 *
 * The columns' weights stand in a panel: for each pair of neighbouring channels the pair of column 0, of column 1 and
 * so on, which is the order in which VDPBF16PS multiplies them and a single forward stream through memory. Up to 12
 * rows share one pass over a panel, their fp32 sums held in 24 registers. With several rows in the air a processor's own
 * prefetching falls behind, so a pass that reads its panel from memory asks for what it will need far ahead.
 */

#ifndef MOLINK_TILE_H
#define MOLINK_TILE_H

#include <immintrin.h>
#include <stdint.h>

#define VECTORS 2
#define PANEL (16 * VECTORS)
#define ROWS_MAX 12

typedef uint16_t bfloat16;

static inline __attribute__((always_inline)) __m512bh pair_of(const bfloat16 *x)
{
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* sum += x W for `rows` rows of x, a constant where this is inlined, so that every sum stays in its register. What
 * follows `ahead` bytes later is prefetched; 0 where W is in the cache already. */
static inline __attribute__((always_inline)) void
multiply_tile(const int rows, const bfloat16 *x, long x_stride, const bfloat16 *w, long pairs, long ahead,
              __m512 sum[ROWS_MAX][VECTORS])
{
    for (long pair = 0; pair < pairs; pair++, w += 2 * PANEL) {
        __m512bh column[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            column[v] = (__m512bh)_mm512_loadu_si512(w + 32 * v);
        if (ahead)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                _mm_prefetch((const char *)(w + 32 * v) + ahead, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            __m512bh value = pair_of(x + row * x_stride + 2 * pair);
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                sum[row][v] = _mm512_dpbf16_ps(sum[row][v], value, column[v]);
        }
    }
}

/* Rows for the next pass: as many as fit, the last two passes about equal. */
static inline long rows_for_pass(long left)
{
    if (left <= ROWS_MAX)
        return left;
    return left < 2 * ROWS_MAX ? (left + 1) / 2 : ROWS_MAX;
}

static inline __mmask16 first_lanes(long count)
{
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* Calls `function(count, ...)` with the number of rows as a constant. */
#define FOR_ROWS(rows, function, ...)                                                                                  \
    switch (rows) {                                                                                                    \
    case 1: function(1, __VA_ARGS__); break;                                                                           \
    case 2: function(2, __VA_ARGS__); break;                                                                           \
    case 3: function(3, __VA_ARGS__); break;                                                                           \
    case 4: function(4, __VA_ARGS__); break;                                                                           \
    case 5: function(5, __VA_ARGS__); break;                                                                           \
    case 6: function(6, __VA_ARGS__); break;                                                                           \
    case 7: function(7, __VA_ARGS__); break;                                                                           \
    case 8: function(8, __VA_ARGS__); break;                                                                           \
    case 9: function(9, __VA_ARGS__); break;                                                                           \
    case 10: function(10, __VA_ARGS__); break;                                                                         \
    case 11: function(11, __VA_ARGS__); break;                                                                         \
    case 12: function(12, __VA_ARGS__); break;                                                                         \
    }

/* A thread's products with panels of bfloat16, all for as many rows; `by_tiles` is whether they go by tiles of AMX. What is `ahead` bytes behind a panel is prefetched; 0 where it is in the cache. */
int panels_by_tiles(long rows, long inputs);
void begin_panels(int by_tiles, long rows);
void multiply_panel(int by_tiles, const bfloat16 *x, long rows, long inputs, const bfloat16 *panel, const float *bias,
                    long columns, bfloat16 *y, long y_stride, long ahead);
void end_panels(int by_tiles);

/* y [rows][outputs] = x W' + b, for weights in bfloat16 and in codes (coded.h); `bias` (or null) is padded to a whole
 * panel. The second returns 1 when there was no memory. */
struct coded;
void linear_bf16(const bfloat16 *x, long rows, long inputs, const bfloat16 *weights, const float *bias, bfloat16 *y,
                 long outputs, int threads);
int linear_coded_bf16(const bfloat16 *x, long rows, const struct coded *weights, const float *bias, bfloat16 *y,
                      int threads);

#endif
