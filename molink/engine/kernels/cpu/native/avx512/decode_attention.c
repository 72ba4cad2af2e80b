/* Attention of single query rows (decoding) over the keys and values in the paged pool, bfloat16 or int8.
 *
 * One unit of work is one row and one kv head. Its keys are read block by block where they are, and walked in chunks
 * whose scores stay in the first-level cache, with an online softmax: highest score and sum of weights so far, and what was summed before fades when a
 * chunk brings a higher one. So each key and value is read once, however long the context; with all scores first, the
 * walk over the values read them once for each query head and every 16 channels. Sixteen keys are scored at a time
 * (VDPBF16PS, fp32 sums), their sums folded by a tree of additions. Int8 codes are exact in bfloat16: a key's scale
 * multiplies its scores, a value's scale its weights. Softcap and sinks cost nothing here, a window is just a later
 * first key. No copy, no mask, no padding between sequences, and a row's bits depend on nothing but its own keys.
 */

#include <stdlib.h>

#include "attention.h"

#define CHUNK 256
#define KEYS BLOCK
#define AHEAD 8 /* values */

/* Some keys of a row, those of its blocks: from the one numbered `from` on, up to `count`. */
struct part {
    const int32_t *blocks;
    long blocks_left; /* in the table */
    long from, count;
};

/* The slot after block `n`'s: what is asked for ahead. */
static inline long slot_behind(struct part p, long n)
{
    return (long)p.blocks[n + 1 < p.blocks_left ? n + 1 : n] * BLOCK;
}

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

/* Keys of a block as bfloat16 rows `*stride` apart: where they are, or in the scratch, zeros behind the last one. Those
 * of the block behind are asked for. */
static inline __attribute__((always_inline)) const bfloat16 *
fetch_keys(const int coded, struct shape s, const void *keys, long at, long behind, long count, bfloat16 *scratch,
           long *stride)
{
    long width = s.key_token;
    for (long n = 0; n < KEYS; n++)
        ask_for(coded, keys, behind + n * width, s.key_size);
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
score(const int coded, struct shape s, const bfloat16 *query, const void *keys, long head, struct part p,
      struct scratch t)
{
    for (long n = 0; n < p.count; n += KEYS) {
        long stride, at = p.blocks[n / KEYS] * (long)BLOCK * s.key_token + head * s.key_head;
        long behind = slot_behind(p, n / KEYS) * s.key_token + head * s.key_head;
        const bfloat16 *key = fetch_keys(coded, s, keys, at, behind, p.count - n, t.keys, &stride);
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

static inline __mmask16 seen_lanes(struct part p, long n)
{
    return first_lanes(p.count - n) & (__mmask16)~first_lanes(p.from - n);
}

/* Turn the scores of one head into weights under the highest score so far; `value_scales` (or null) multiply them. */
static void weigh_scores(float *scores, struct part p, const float *value_scales, float *highest, float *total,
                         float *fading)
{
    __m512 high = _mm512_set1_ps(*highest), sum = _mm512_setzero_ps();
    for (long n = 0; n < p.count; n += 16)
        high = _mm512_mask_max_ps(high, seen_lanes(p, n), high, _mm512_loadu_ps(scores + n));
    float now = _mm512_reduce_max_ps(high);
    for (long n = 0; n < p.count; n += 16) {
        __mmask16 mask = seen_lanes(p, n);
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
add_values(const int coded, const int heads, const int vectors, struct shape s, const void *values, long head_at,
           struct part p, long g, long i, struct scratch t)
{
    long stride = s.value_token;
    float *sums = t.sums + g * s.value_size + i;
    const float *weights = t.scores + g * CHUNK;
    __m512 sum[4][4];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[head][v] = _mm512_mul_ps(_mm512_loadu_ps(sums + head * s.value_size + 16 * v),
                                         _mm512_set1_ps(t.fading[g + head]));
    for (long n = p.from, end; n < p.count; n = end) {
        long first = n / BLOCK * BLOCK, behind = slot_behind(p, n / BLOCK);
        long at = (p.blocks[n / BLOCK] * (long)BLOCK + n % BLOCK) * stride + head_at + i;
        end = first + BLOCK < p.count ? first + BLOCK : p.count;
        for (; n < end; n++, at += stride) {
            __m512 value[4];
            long jump = n - first + AHEAD - BLOCK;
            ask_for(coded, values, jump < 0 ? at + AHEAD * stride : (behind + jump) * stride + head_at + i,
                    16 * vectors);
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
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(sums + head * s.value_size + 16 * v, sum[head][v]);
}

static inline __attribute__((always_inline)) void
add_heads(const int coded, const int heads, struct shape s, const void *values, long head_at, struct part p, long g,
          struct scratch t)
{
    long i = 0;
    for (; i + 64 <= s.value_size; i += 64)
        add_values(coded, heads, 4, s, values, head_at, p, g, i, t);
    for (; i < s.value_size; i += 16)
        add_values(coded, heads, 1, s, values, head_at, p, g, i, t);
}

static inline __attribute__((always_inline)) void
attend_chunk(const int coded, struct shape s, const bfloat16 *query, struct kv kv, long head, struct part p,
             struct scratch t)
{
    for (long n = 0; coded && n < p.count; n += BLOCK) {
        long at = p.blocks[n / BLOCK] * (long)BLOCK * s.kv_heads + head;
        decode_scales(kv.key_scales + at, s.kv_heads, p.count - n < BLOCK ? p.count - n : BLOCK, t.key_scales + n);
        decode_scales(kv.value_scales + at, s.kv_heads, p.count - n < BLOCK ? p.count - n : BLOCK, t.value_scales + n);
    }
    score(coded, s, query, kv.keys, head, p, t);
    for (long g = 0; g < s.group; g++) {
        cap(t.scores + g * CHUNK, p.count, s.softcap);
        weigh_scores(t.scores + g * CHUNK, p, coded ? t.value_scales : 0, t.highest + g, t.total + g, t.fading + g);
    }
    long g = 0, head_at = head * s.value_head;
    for (; g + 4 <= s.group; g += 4)
        add_heads(coded, 4, s, kv.values, head_at, p, g, t);
    for (; g + 2 <= s.group; g += 2)
        add_heads(coded, 2, s, kv.values, head_at, p, g, t);
    for (; g < s.group; g++)
        add_heads(coded, 1, s, kv.values, head_at, p, g, t);
}

static void attend(struct shape s, const bfloat16 *query, struct kv kv, struct span span, long window, long head,
                   const float *sinks, bfloat16 *out, float *lse, struct scratch t)
{
    long seen = span.start + 1, end = seen < span.keys ? seen : span.keys;
    long first = window && seen > window ? seen - window : 0, blocks = (end + BLOCK - 1) / BLOCK;
    memset(t.sums, 0, sizeof(float) * (size_t)(s.group * s.value_size));
    for (long g = 0; g < s.group; g++) {
        t.highest[g] = sinks ? sinks[g] : -INFINITY;
        t.total[g] = sinks || first >= end ? 1 : 0;
    }
    for (long n = first / BLOCK * BLOCK; first < end && n < end; n += CHUNK) {
        struct part p = {span.blocks + n / BLOCK, blocks - n / BLOCK, n < first ? first - n : 0,
                         end - n < CHUNK ? end - n : CHUNK};
        if (kv.key_scales)
            attend_chunk(1, s, query, kv, head, p, t);
        else
            attend_chunk(0, s, query, kv, head, p, t);
    }
    for (long g = 0; g < s.group; g++)
        for (long i = 0; i < s.value_size; i += 16) {
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(t.sums + g * s.value_size + i), _mm512_set1_ps(1 / t.total[g]));
            _mm256_storeu_si256((void *)(out + g * s.value_size + i), (__m256i)_mm512_cvtneps_pbh(sum));
        }
    for (long g = 0; lse && g < s.group; g++)
        lse[g] = t.highest[g] + logf(t.total[g]); /* -inf + log 1 where nothing is seen */
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

int decode_attention(const struct shape *shape, const struct batch *batch, const bfloat16 *query, const struct kv *kv,
                     const float *sinks, bfloat16 *out, float *lse, int threads)
{
    struct shape s = *shape;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct scratch t;
        float *memory = scratch_for(s, &t);
        if (!memory)
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < batch->spans * s.kv_heads; unit++) {
            struct span span = span_of(batch, unit / s.kv_heads);
            long head = unit % s.kv_heads, query_head = (span.row * s.kv_heads + head) * s.group;
            if (memory && span.rows == 1)
                attend(s, query + query_head * s.key_size, *kv, span, batch->window, head,
                       sinks ? sinks + head * s.group : 0, out + query_head * s.value_size, lse ? lse + query_head : 0, t);
        }
        free(memory);
    }
    return failed;
}
