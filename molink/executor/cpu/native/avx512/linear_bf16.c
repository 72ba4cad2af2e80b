/* y = x W' + b for bfloat16 x and W, fp32 b and sums: few rows of x, many rows of W, as fast as W can be read.
 *
 * W is stored in panels of 32 of its rows (see tile.h). More than 12 rows of x repeat the pass over a panel, which by
 * then is in the cache.
 */

#include "tile.h"

#define AHEAD_BYTES 32768 /* 12 rows take 45 % less time than without, one row no longer */

struct panel {
    const bfloat16 *weights;
    const float *bias; /* one per row of the panel, or null */
    long pairs;        /* input channels / 2 */
    long columns;      /* rows of W that count; the last panel is padded */
    long ahead;        /* bytes to prefetch, 0 where the panel is in the cache */
};

static inline __attribute__((always_inline)) void
multiply(const int rows, struct panel panel, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    __m512 sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[row][v] = panel.bias ? _mm512_loadu_ps(panel.bias + 16 * v) : _mm512_setzero_ps();
    multiply_tile(rows, x, 2 * panel.pairs, panel.weights, panel.pairs, panel.ahead, sum);
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm256_mask_storeu_epi16(y + row * y_stride + 16 * v, first_lanes(panel.columns - 16 * v),
                                     (__m256i)_mm512_cvtneps_pbh(sum[row][v]));
}

static void multiply_rows(long rows, struct panel panel, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    FOR_ROWS(rows, multiply, panel, x, y, y_stride)
}

void linear_bf16(const bfloat16 *x, long rows, long inputs, const bfloat16 *weights, const float *bias,
                 bfloat16 *y, long outputs, int threads)
{
    long panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long index = 0; index < panels; index++) {
        long first = index * PANEL;
        struct panel panel = {weights + first * inputs, bias ? bias + first : 0, inputs / 2, outputs - first,
                              AHEAD_BYTES};
        for (long row = 0; row < rows;) {
            long count = rows_for_pass(rows - row);
            multiply_rows(count, panel, x + row * inputs, y + row * outputs + first, outputs);
            row += count;
            panel.ahead = 0;
        }
    }
}
