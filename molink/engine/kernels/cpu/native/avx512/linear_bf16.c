/* y = x W' + b for bfloat16 x and W, fp32 b and sums: few rows of x, many rows of W, as fast as W can be read.
 *
 * W is stored in panels of 32 of its rows (see tile.h). More than 12 rows of x repeat the pass over a panel, which by
 * then is in the cache. Where there is AMX, more than a few rows go by its tiles.
 */

#include "amx.h"

#define TILE_ROWS_MIN 6    /* rows from which AMX is faster: fewer are bound by memory either way */
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

/* Round sums to the rows of y. */
static void store_rows(long rows, struct panel panel, const float *sum, bfloat16 *y, long y_stride)
{
    for (long row = 0; row < rows; row++)
        for (int v = 0; v < VECTORS; v++) {
            __m512 bias = panel.bias ? _mm512_loadu_ps(panel.bias + 16 * v) : _mm512_setzero_ps();
            __m512 value = _mm512_add_ps(_mm512_loadu_ps(sum + row * PANEL + 16 * v), bias);
            _mm256_mask_storeu_epi16(y + row * y_stride + 16 * v, first_lanes(panel.columns - 16 * v),
                                     (__m256i)_mm512_cvtneps_pbh(value));
        }
}

/* All rows of x against one panel, 32 or 16 at a time; the last ones overlap those before, which come out the same. */
static WITH_AMX void multiply_by_tiles(long rows, struct panel panel, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    float sum[2 * TILE_ROWS * PANEL];
    const long stride = 2 * panel.pairs, once = rows < TILE_ROWS ? rows : TILE_ROWS;
    for (long row = 0; row < rows; row += 2 * TILE_ROWS) {
        const long left = rows - row, first = left < once ? rows - once : row;
        if (left > once) {
            const long second = left < 2 * once ? rows - once : row + once;
            multiply_tiles(1, x + first * stride, x + second * stride, stride, panel.weights, panel.pairs, panel.ahead,
                           sum, PANEL);
            store_rows(once, panel, sum + TILE_ROWS * PANEL, y + second * y_stride, y_stride);
        } else
            multiply_tiles(0, x + first * stride, 0, stride, panel.weights, panel.pairs, panel.ahead, sum,
                           PANEL);
        store_rows(once, panel, sum, y + first * y_stride, y_stride);
        panel.ahead = 0;
    }
}

static void multiply_by_vectors(long rows, struct panel panel, const bfloat16 *x, bfloat16 *y, long y_stride)
{
    for (long row = 0; row < rows;) {
        long count = rows_for_pass(rows - row);
        multiply_rows(count, panel, x + row * 2 * panel.pairs, y + row * y_stride, y_stride);
        row += count;
        panel.ahead = 0;
    }
}

int panels_by_tiles(long rows, long inputs)
{
    return rows >= TILE_ROWS_MIN && inputs % (2 * TILE_ROWS) == 0 && amx_allowed();
}

void begin_panels(int by_tiles, long rows)
{
    if (by_tiles)
        begin_tiles(rows < TILE_ROWS ? rows : TILE_ROWS);
}

void multiply_panel(int by_tiles, const bfloat16 *x, long rows, long inputs, const bfloat16 *weights,
                    const float *bias, long columns, bfloat16 *y, long y_stride, long ahead)
{
    struct panel panel = {weights, bias, inputs / 2, columns, ahead};
    if (by_tiles)
        multiply_by_tiles(rows, panel, x, y, y_stride);
    else
        multiply_by_vectors(rows, panel, x, y, y_stride);
}

void end_panels(int by_tiles)
{
    if (by_tiles)
        end_tiles();
}

void linear_bf16(const bfloat16 *x, long rows, long inputs, const bfloat16 *weights, const float *bias,
                 bfloat16 *y, long outputs, int threads)
{
    const int by_tiles = panels_by_tiles(rows, inputs);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        begin_panels(by_tiles, rows);
#pragma omp for
        for (long first = 0; first < outputs; first += PANEL)
            multiply_panel(by_tiles, x, rows, inputs, weights + first * inputs, bias ? bias + first : 0,
                           outputs - first, y + first, outputs, AHEAD_BYTES);
        end_panels(by_tiles);
    }
}
