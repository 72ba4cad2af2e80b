/* Tiles of AMX: 16 or 32 rows of x against the 32 columns of a panel, where the processor has them.
 *
 * A panel (tile.h) is in the order in which TDPBF16PS reads its second factor: sixteen pairs of channels are sixteen
 * rows of a tile, so both kernels share one copy of the weights. A step of 32 channels multiplies two tiles of x with
 * two of the panel: four loads for four products. The tiles are a thread's own state: each thread configures them
 * before its share of the work and releases them behind it. The system must be asked once whether a process may use
 * them at all; where it does not know them, nothing here is called.
 */

#ifndef MOLINK_AMX_H
#define MOLINK_AMX_H

#include "tile.h"

#define TILE_ROWS 16

#if defined(__linux__) && defined(__x86_64__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define HAS_AMX 1
#endif
#endif

#ifdef HAS_AMX

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WITH_AMX __attribute__((target("amx-tile,amx-bf16")))
#define ASK_FOR_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18         /* XFEATURE_XTILEDATA */

static inline int amx_allowed(void)
{
    static int allowed = -1; /* the same answer for whoever asks first */
    if (allowed < 0)
        allowed = __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
    return allowed;
}

/* Tiles 0 to 3: sums, 4 and 5: x, 6 and 7: the panel. `rows` of x, 16 at most. */
static WITH_AMX inline void begin_tiles(long rows)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = 64;
        config.rows[tile] = (uint8_t)(tile < 6 ? rows : TILE_ROWS);
    }
    __asm__ volatile("" : : "m"(config)); /* some compilers think that only its first bytes are read */
    _tile_loadconfig(&config);
}

static WITH_AMX inline void end_tiles(void)
{
    _tile_release();
}

static inline __attribute__((always_inline)) void ask_for_tile(const bfloat16 *w, long ahead)
{
#pragma GCC unroll 32
    for (int line = 0; line < 32; line++)
        _mm_prefetch((const char *)(w + 32 * line) + ahead, _MM_HINT_T0);
}

/* sum = x W for `pairs` (a multiple of 16) pairs of channels: 16 rows of 32 from `x` on, and, if `two`, as many from
 * `second` on behind them. */
static WITH_AMX inline __attribute__((always_inline)) void
multiply_tiles(const int two, const bfloat16 *x, const bfloat16 *second, long x_stride, const bfloat16 *w, long pairs,
               long ahead, float *sum, long sum_stride)
{
    long bytes = 2 * x_stride, sum_bytes = 4 * sum_stride;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (long pair = 0; pair < pairs; pair += TILE_ROWS, w += TILE_ROWS * 2 * PANEL) {
        if (ahead)
            ask_for_tile(w, ahead);
        _tile_loadd(6, w, 4 * PANEL);
        _tile_loadd(7, w + 2 * TILE_ROWS, 4 * PANEL);
        _tile_loadd(4, x + 2 * pair, bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, second + 2 * pair, bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sum, sum_bytes);
    _tile_stored(1, sum + 16, sum_bytes);
    if (two) {
        _tile_stored(2, sum + TILE_ROWS * sum_stride, sum_bytes);
        _tile_stored(3, sum + TILE_ROWS * sum_stride + 16, sum_bytes);
    }
}

#else

#define WITH_AMX

static inline int amx_allowed(void)
{
    return 0;
}

static inline void begin_tiles(long rows)
{
    (void)rows;
}

static inline void end_tiles(void)
{
}

/* Never called. */
static inline void multiply_tiles(const int two, const bfloat16 *x, const bfloat16 *second, long x_stride,
                                  const bfloat16 *w, long pairs, long ahead, float *sum, long sum_stride)
{
    (void)two, (void)x, (void)second, (void)x_stride, (void)w, (void)pairs, (void)ahead, (void)sum, (void)sum_stride;
}

#endif
#endif
