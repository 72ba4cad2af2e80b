/* What attention of decode rows and of spans have in common. */

#ifndef MOLINK_ATTENTION_H
#define MOLINK_ATTENTION_H

#include <math.h>
#include <string.h>

#include "../attention_call.h"
#include "tile.h"

static inline __m512 widened(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline __m512 decoded(const int8_t *codes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)codes)));
}

/* `count` codes (a multiple of 16) as bfloat16, which holds each of them exactly. */
static inline void decode_row(const int8_t *codes, long count, bfloat16 *out)
{
    long i = 0;
    for (; i + 32 <= count; i += 32)
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(decoded(codes + i + 16), decoded(codes + i)));
    if (i < count)
        _mm256_storeu_si256((void *)(out + i), (__m256i)_mm512_cvtneps_pbh(decoded(codes + i)));
}

/* Scales of one kv head in `count` slots, and zeros behind them up to a multiple of 16. */
static inline void decode_scales(const bfloat16 *scales, long stride, long count, float *out)
{
    for (long n = 0; n < (count + 15) / 16 * 16; n++) {
        uint32_t bits = n < count ? (uint32_t)scales[n * stride] << 16 : 0;
        memcpy(out + n, &bits, sizeof bits);
    }
}

/* Rows of a head lie apart, and a processor's own prefetching loses them: ask for what is read next. Behind the last
 * row that is memory which nobody reads; asking for it does no harm. */
static inline __attribute__((always_inline)) void ask_for(const int coded, const void *rows, long at, long count)
{
    const char *row = (const char *)rows + at * (coded ? 1 : 2);
    for (long i = 0; i < count * (coded ? 1 : 2); i += 64)
        _mm_prefetch(row + i, _MM_HINT_T0);
}

/* exp(x) for x <= 0, to about 1e-7: 2^n by exponent, the rest by its series. */
static inline __m512 exponential(__m512 x)
{
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static inline void cap(float *scores, long count, float softcap)
{
    if (softcap > 0)
        for (long n = 0; n < count; n++)
            scores[n] = softcap * tanhf(scores[n] / softcap);
}

/* The lanes [first, end) of a vector, where both may lie outside of it. */
static inline __mmask16 lanes_between(long first, long end)
{
    return first_lanes(end) & (__mmask16)~first_lanes(first);
}

/* Attention [row][query head][value] of the spans of one row, and of those of several. Return 0, or 1 when there was no
 * memory. `sinks` (one per query head) may be null. `lse` [row][query head], or null: the logarithm of the sum of the
 * exponentials of each row's scores, sinks included, -inf where there are none. By it, results over parts of a row's
 * keys are joined. */
int decode_attention(const struct shape *shape, const struct batch *batch, const bfloat16 *query, const struct kv *kv,
                     const float *sinks, bfloat16 *out, float *lse, int threads);
int span_attention(const struct shape *shape, const struct batch *batch, const bfloat16 *query, const struct kv *kv,
                   const float *sinks, bfloat16 *out, float *lse, int threads);

#endif
