/* Attention of single query rows (decoding) over the keys and values in the paged pool, bfloat16 or int8.
 *
 * One unit of work is one row and one kv head. Its keys are walked in chunks whose scores stay in the first-level
 * cache, with an online softmax: highest score and sum of weights so far, and what was summed before fades when a
 * chunk brings a higher one. So each key and value is read once, however long the context; with all scores first, the
 * walk over the values read them once for each query head and every 16 channels. Sixteen keys are scored at a time
 * (VDPBF16PS, fp32 sums), their sums folded by a tree of additions. Int8 codes are exact in bfloat16: a key's scale
 * multiplies its scores, a value's scale its weights. Softcap and sinks cost nothing here, a window is just a later
 * first key. No copy, no mask, no padding between sequences.
 */

#include <stdlib.h>

#include "attention.h"

#define CHUNK 256
#define KEYS 16
#define AHEAD 8 /* values */

/* Which keys a row reads: slots [first, first + count) of the pool. */
struct range {
    int64_t row, first, count;
};

struct scratch {
    float *scores;                    /* [group][CHUNK] */
    float *sums;                      /* [group][value_size]: weighted values so far */
    float *highest, *total, *fading;  /* [group] */
    float *key_scales, *value_scales; /* [CHUNK] */
    bfloat16 *keys;                   /* [KEYS][key_size] */
};

/* Vector n of the result: the sum of all lanes of x[n]. */
static inline __attribute__((always_inline)) __m512 sums_of_lanes(const __m512 x[KEYS])
{
    __m512 pairs[8], fours[4], halves[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512 a = fours[2 * i], b = fours[2 * i + 1];
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                         _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

/* Rows of a head lie apart, and a processor's own prefetching loses them: ask for what is read next. Behind the last
 * row that is memory which nobody reads; asking for it does no harm. */
static inline __attribute__((always_inline)) void ask_for(const int coded, const void *rows, long at, long count)
{
    const char *row = (const char *)rows + at * (coded ? 1 : 2);
    for (long i = 0; i < count * (coded ? 1 : 2); i += 64)
        _mm_prefetch(row + i, _MM_HINT_T0);
}

/* Sixteen keys as bfloat16 rows `*stride` apart: where they are, or in the scratch, zeros behind the last one. */
static inline __attribute__((always_inline)) const bfloat16 *
fetch_keys(const int coded, struct shape s, const void *keys, long at, long count, bfloat16 *scratch, long *stride)
{
    long width = s.kv_heads * s.key_size;
    for (long n = 0; n < KEYS; n++)
        ask_for(coded, keys, at + (KEYS + n) * width, s.key_size);
    if (!coded && count >= KEYS) {
        *stride = width;
        return (const bfloat16 *)keys + at;
    }
    *stride = s.key_size;
    for (long n = 0; n < KEYS; n++, at += width) {
        bfloat16 *out = scratch + n * s.key_size;
        if (n >= count)
            memset(out, 0, 2 * (size_t)s.key_size);
        else if (coded)
            decode_row((const int8_t *)keys + at, s.key_size, out);
        else
            memcpy(out, (const bfloat16 *)keys + at, 2 * (size_t)s.key_size);
    }
    return scratch;
}

static inline __attribute__((always_inline)) void
score(const int coded, struct shape s, const bfloat16 *query, const void *keys, long at, long count, struct scratch t)
{
    for (long n = 0; n < count; n += KEYS, at += KEYS * s.kv_heads * s.key_size) {
        long stride;
        const bfloat16 *key = fetch_keys(coded, s, keys, at, count - n, t.keys, &stride);
        __m512 scale = _mm512_set1_ps(s.scale);
        if (coded)
            scale = _mm512_mul_ps(scale, _mm512_loadu_ps(t.key_scales + n));
        for (long g = 0; g < s.group; g++) {
            __m512 sum[KEYS];
#pragma GCC unroll 16
            for (int k = 0; k < KEYS; k++)
                sum[k] = _mm512_setzero_ps();
            for (long i = 0; i < s.key_size; i += 32) {
                __m512bh channels = (__m512bh)_mm512_loadu_si512(query + g * s.key_size + i);
#pragma GCC unroll 16
                for (int k = 0; k < KEYS; k++)
                    sum[k] = _mm512_dpbf16_ps(sum[k], channels, (__m512bh)_mm512_loadu_si512(key + k * stride + i));
            }
            _mm512_storeu_ps(t.scores + g * CHUNK + n, _mm512_mul_ps(sums_of_lanes(sum), scale));
        }
    }
}

/* Turn the scores of one head into weights under the highest score so far; `value_scales` (or null) multiply them. */
static void weigh_scores(float *scores, long count, const float *value_scales, float *highest, float *total,
                         float *fading)
{
    __m512 high = _mm512_set1_ps(*highest), sum = _mm512_setzero_ps();
    for (long n = 0; n < count; n += 16)
        high = _mm512_mask_max_ps(high, first_lanes(count - n), high, _mm512_loadu_ps(scores + n));
    float now = _mm512_reduce_max_ps(high);
    for (long n = 0; n < count; n += 16) {
        __mmask16 mask = first_lanes(count - n);
        __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + n), _mm512_set1_ps(now)));
        sum = _mm512_mask_add_ps(sum, mask, sum, weight);
        if (value_scales)
            weight = _mm512_mul_ps(weight, _mm512_loadu_ps(value_scales + n));
        _mm512_storeu_ps(scores + n, weight);
    }
    *fading = expf(*highest - now);
    *total = *total * *fading + _mm512_reduce_add_ps(sum);
    *highest = now;
}

/* Channels [i, i + 16 vectors) of the weighted sum, for `heads` heads: each value is read once for all of them. */
static inline __attribute__((always_inline)) void
add_values(const int coded, const int heads, const int vectors, struct shape s, const void *values, long at, long count,
           long g, long i, struct scratch t)
{
    long stride = s.kv_heads * s.value_size;
    float *sums = t.sums + g * s.value_size + i;
    const float *weights = t.scores + g * CHUNK;
    __m512 sum[4][4];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[head][v] = _mm512_mul_ps(_mm512_loadu_ps(sums + head * s.value_size + 16 * v),
                                         _mm512_set1_ps(t.fading[g + head]));
    at += i;
    for (long n = 0; n < count; n++, at += stride) {
        __m512 value[4];
        ask_for(coded, values, at + AHEAD * stride, 16 * vectors);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            value[v] = coded ? decoded((const int8_t *)values + at + 16 * v)
                             : widened(_mm256_loadu_si256((const void *)((const bfloat16 *)values + at + 16 * v)));
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++) {
            __m512 weight = _mm512_set1_ps(weights[head * CHUNK + n]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[head][v] = _mm512_fmadd_ps(value[v], weight, sum[head][v]);
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(sums + head * s.value_size + 16 * v, sum[head][v]);
}

static inline __attribute__((always_inline)) void
add_heads(const int coded, const int heads, struct shape s, const void *values, long at, long count, long g,
          struct scratch t)
{
    long i = 0;
    for (; i + 64 <= s.value_size; i += 64)
        add_values(coded, heads, 4, s, values, at, count, g, i, t);
    for (; i < s.value_size; i += 16)
        add_values(coded, heads, 1, s, values, at, count, g, i, t);
}

static inline __attribute__((always_inline)) void
attend_chunk(const int coded, struct shape s, const bfloat16 *query, struct kv kv, long slot, long head, long count,
             struct scratch t)
{
    long at = slot * s.kv_heads + head;
    if (coded) {
        decode_scales(kv.key_scales + at, s.kv_heads, count, t.key_scales);
        decode_scales(kv.value_scales + at, s.kv_heads, count, t.value_scales);
    }
    score(coded, s, query, kv.keys, at * s.key_size, count, t);
    for (long g = 0; g < s.group; g++) {
        cap(t.scores + g * CHUNK, count, s.softcap);
        weigh_scores(t.scores + g * CHUNK, count, coded ? t.value_scales : 0, t.highest + g, t.total + g, t.fading + g);
    }
    long g = 0;
    for (; g + 4 <= s.group; g += 4)
        add_heads(coded, 4, s, kv.values, at * s.value_size, count, g, t);
    for (; g + 2 <= s.group; g += 2)
        add_heads(coded, 2, s, kv.values, at * s.value_size, count, g, t);
    for (; g < s.group; g++)
        add_heads(coded, 1, s, kv.values, at * s.value_size, count, g, t);
}

static void attend(struct shape s, const bfloat16 *query, struct kv kv, struct range r, long head, const float *sinks,
                   bfloat16 *out, struct scratch t)
{
    memset(t.sums, 0, sizeof(float) * (size_t)(s.group * s.value_size));
    for (long g = 0; g < s.group; g++) {
        t.highest[g] = sinks ? sinks[g] : -INFINITY;
        t.total[g] = sinks ? 1 : 0;
    }
    for (long n = 0; n < r.count; n += CHUNK) {
        long count = r.count - n < CHUNK ? r.count - n : CHUNK;
        if (kv.key_scales)
            attend_chunk(1, s, query, kv, r.first + n, head, count, t);
        else
            attend_chunk(0, s, query, kv, r.first + n, head, count, t);
    }
    for (long g = 0; g < s.group; g++)
        for (long i = 0; i < s.value_size; i += 16) {
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(t.sums + g * s.value_size + i), _mm512_set1_ps(1 / t.total[g]));
            _mm256_storeu_si256((void *)(out + g * s.value_size + i), (__m256i)_mm512_cvtneps_pbh(sum));
        }
}

static float *scratch_for(struct shape s, struct scratch *t)
{
    size_t group = (size_t)s.group, sums = group * (size_t)s.value_size;
    size_t floats = group * CHUNK + sums + 3 * group + 2 * CHUNK;
    float *memory = malloc(4 * floats + 2 * KEYS * (size_t)s.key_size);
    if (memory) {
        t->scores = memory;
        t->sums = t->scores + group * CHUNK;
        t->highest = t->sums + sums;
        t->total = t->highest + group;
        t->fading = t->total + group;
        t->key_scales = t->fading + group;
        t->value_scales = t->key_scales + CHUNK;
        t->keys = (bfloat16 *)(memory + floats);
    }
    return memory;
}

/* Returns 0, or 1 when there was no memory. `sinks` (one per query head) may be null. */
int decode_attention(const struct shape *shape, const bfloat16 *query, const struct kv *kv, const float *sinks,
                     const struct range *ranges, long rows, bfloat16 *out, int threads)
{
    struct shape s = *shape;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct scratch t;
        float *memory = scratch_for(s, &t);
        if (!memory)
            failed = 1;
#pragma omp for
        for (long unit = 0; unit < rows * s.kv_heads; unit++) {
            struct range r = ranges[unit / s.kv_heads];
            long head = unit % s.kv_heads, query_head = (r.row * s.kv_heads + head) * s.group;
            if (memory)
                attend(s, query + query_head * s.key_size, *kv, r, head, sinks ? sinks + head * s.group : 0,
                       out + query_head * s.value_size, t);
        }
        free(memory);
    }
    return failed;
}
