/* Attention of single query rows (decoding) over the keys and values in the paged pool, bfloat16 or int8.
 *
 * One unit of work is one row and some neighbouring kv heads, all of them where one thread computes. Its keys are read
 * block by block where they are, each block's for all of these heads, as it lies in memory: head by head each page is
 * met as often as there are heads, and neither the processor's prefetching nor its table of pages keeps up. Keys are
 * walked in chunks with an online softmax: highest score and sum of weights so far, and what was summed before fades
 * when a chunk brings a higher one. So each key and value is read once, however long the context. Sixteen keys are
 * scored at a time (VDPBF16PS, fp32 sums), their sums folded by a tree of additions. Int8 codes are exact in bfloat16: a
 * key's scale multiplies its scores, a value's scale its weights. Softcap and sinks cost nothing here, a window is just
 * a later first key. No copy, no mask, no padding between sequences, and a row's bits depend on nothing but its own
 * keys: not on which heads are computed together.
 */

#include <stdlib.h>

#include "attention.h"

#define CHUNK 256
#define KEYS BLOCK
#define HEADS_MAX 64 /* query heads of a unit, if those of one kv head are not more */

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
    float *scores;                    /* [query heads][CHUNK] */
    float *sums;                      /* [query heads][value_size]: weighted values so far */
    float *highest, *total, *fading;  /* [query heads] */
    float *key_scales, *value_scales; /* [BLOCK], [CHUNK] */
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

/* Scores of one block's keys, numbers [n, n + 16) of the part, for the query heads of one kv head. */
static inline __attribute__((always_inline)) void
score(const int coded, struct shape s, const bfloat16 *query, const struct kv *kv, long head, struct part p, long n,
      float *scores, struct scratch t)
{
    long slot = p.blocks[n / BLOCK] * (long)BLOCK, stride;
    const bfloat16 *key = fetch_keys(coded, s, kv->keys, slot * s.key_token + head * s.key_head,
                                     slot_behind(p, n / BLOCK) * s.key_token + head * s.key_head, p.count - n, t.keys,
                                     &stride);
    __m512 scale = _mm512_set1_ps(s.scale);
    if (coded) {
        decode_scales(kv->key_scales + slot * s.kv_heads + head, s.kv_heads,
                      p.count - n < BLOCK ? p.count - n : BLOCK, t.key_scales);
        scale = _mm512_mul_ps(scale, _mm512_loadu_ps(t.key_scales));
    }
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
        _mm512_storeu_ps(scores + g * CHUNK + n, _mm512_mul_ps(sums_of_lanes(sum), scale));
    }
}

static inline __mmask16 seen_lanes(struct part p, long n)
{
    return lanes_between(p.from - n, p.count - n);
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

/* Add the values of one block, numbers [n, end) of the part, to channels [i, i + 16 vectors) of the sums of `heads`
 * heads: each value is read once for all of them. */
static inline __attribute__((always_inline)) void
add_values(const int coded, const int heads, const int vectors, struct shape s, const void *values, long at,
           long behind, long n, long end, const float *weights, float *sums)
{
    long stride = s.value_token;
    __m512 sum[4][4];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[head][v] = _mm512_loadu_ps(sums + head * s.value_size + 16 * v);
    for (; n < end; n++, at += stride, behind += stride) {
        __m512 value[4];
        ask_for(coded, values, behind, 16 * vectors);
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
add_heads(const int coded, const int heads, struct shape s, const void *values, long at, long behind, long n, long end,
          const float *weights, float *sums)
{
    long i = 0;
    for (; i + 64 <= s.value_size; i += 64)
        add_values(coded, heads, 4, s, values, at + i, behind + i, n, end, weights, sums + i);
    for (; i < s.value_size; i += 16)
        add_values(coded, heads, 1, s, values, at + i, behind + i, n, end, weights, sums + i);
}

/* Add the values of one block for the query heads of one kv head. */
static inline __attribute__((always_inline)) void
add_block(const int coded, struct shape s, const struct kv *kv, long head, struct part p, long n, const float *weights,
          float *sums)
{
    long from = n > p.from ? n : p.from, end = n + BLOCK < p.count ? n + BLOCK : p.count, g = 0;
    long at = (p.blocks[n / BLOCK] * (long)BLOCK + from - n) * s.value_token + head * s.value_head;
    long behind = (slot_behind(p, n / BLOCK) + from - n) * s.value_token + head * s.value_head;
    for (; g + 4 <= s.group; g += 4)
        add_heads(coded, 4, s, kv->values, at, behind, from, end, weights + g * CHUNK, sums + g * s.value_size);
    for (; g + 2 <= s.group; g += 2)
        add_heads(coded, 2, s, kv->values, at, behind, from, end, weights + g * CHUNK, sums + g * s.value_size);
    for (; g < s.group; g++)
        add_heads(coded, 1, s, kv->values, at, behind, from, end, weights + g * CHUNK, sums + g * s.value_size);
}

static void fade(float *sums, long count, float by)
{
    for (long i = 0; i < count; i += 16)
        _mm512_storeu_ps(sums + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), _mm512_set1_ps(by)));
}

/* Some keys of a row for kv heads [head, head + heads): block by block, so that what lies together is read together. */
static inline __attribute__((always_inline)) void
attend_chunk(const int coded, struct shape s, const bfloat16 *query, const struct kv *kv, long head, long heads,
             struct part p, struct scratch t)
{
    for (long n = 0; n < p.count; n += BLOCK)
        for (long h = 0; h < heads; h++)
            score(coded, s, query + h * s.group * s.key_size, kv, head + h, p, n, t.scores + h * s.group * CHUNK, t);
    for (long q = 0; q < heads * s.group; q++) {
        for (long n = 0; coded && q % s.group == 0 && n < p.count; n += BLOCK)
            decode_scales(kv->value_scales + p.blocks[n / BLOCK] * (long)BLOCK * s.kv_heads + head + q / s.group,
                          s.kv_heads, p.count - n < BLOCK ? p.count - n : BLOCK, t.value_scales + n);
        cap(t.scores + q * CHUNK, p.count, s.softcap);
        weigh_scores(t.scores + q * CHUNK, p, coded ? t.value_scales : 0, t.highest + q, t.total + q, t.fading + q);
        fade(t.sums + q * s.value_size, s.value_size, t.fading[q]);
    }
    for (long n = p.from / BLOCK * BLOCK; n < p.count; n += BLOCK)
        for (long h = 0; h < heads; h++)
            add_block(coded, s, kv, head + h, p, n, t.scores + h * s.group * CHUNK,
                      t.sums + h * s.group * s.value_size);
}

static void attend(struct shape s, const bfloat16 *query, const struct kv *kv, struct span span, long window, long head,
                   long heads, const float *sinks, bfloat16 *out, float *lse, struct scratch t)
{
    long seen = span.start + 1, end = seen < span.keys ? seen : span.keys, rows = heads * s.group;
    long first = window && seen > window ? seen - window : 0, blocks = (end + BLOCK - 1) / BLOCK;
    memset(t.sums, 0, sizeof(float) * (size_t)(rows * s.value_size));
    for (long q = 0; q < rows; q++) {
        t.highest[q] = sinks ? sinks[q] : -INFINITY;
        t.total[q] = sinks || first >= end ? 1 : 0;
    }
    for (long n = first / BLOCK * BLOCK; first < end && n < end; n += CHUNK) {
        struct part p = {span.blocks + n / BLOCK, blocks - n / BLOCK, n < first ? first - n : 0,
                         end - n < CHUNK ? end - n : CHUNK};
        if (kv->key_scales)
            attend_chunk(1, s, query, kv, head, heads, p, t);
        else
            attend_chunk(0, s, query, kv, head, heads, p, t);
    }
    for (long q = 0; q < rows; q++)
        for (long i = 0; i < s.value_size; i += 16) {
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(t.sums + q * s.value_size + i), _mm512_set1_ps(1 / t.total[q]));
            _mm256_storeu_si256((void *)(out + q * s.value_size + i), (__m256i)_mm512_cvtneps_pbh(sum));
        }
    for (long q = 0; lse && q < rows; q++)
        lse[q] = t.highest[q] + logf(t.total[q]); /* -inf + log 1 where nothing is seen */
}

static float *scratch_for(struct shape s, long heads, struct scratch *t)
{
    size_t group = (size_t)(heads * s.group), sums = group * (size_t)s.value_size;
    size_t floats = group * CHUNK + sums + 3 * group + BLOCK + CHUNK;
    float *memory = malloc(4 * floats + 2 * KEYS * (size_t)s.key_size);
    if (memory) {
        t->scores = memory;
        t->sums = t->scores + group * CHUNK;
        t->highest = t->sums + sums;
        t->total = t->highest + group;
        t->fading = t->total + group;
        t->key_scales = t->fading + group;
        t->value_scales = t->key_scales + BLOCK;
        t->keys = (bfloat16 *)(memory + floats);
    }
    return memory;
}

/* Kv heads that a thread takes together: all that lie together, but for two units for each thread. */
static long heads_of_unit(struct shape s, long spans, int threads)
{
    long units = threads > 1 ? (2 * threads + spans - 1) / spans : 1;
    long most = HEADS_MAX / s.group > 1 ? HEADS_MAX / s.group : 1, heads = (s.kv_heads + units - 1) / units;
    return heads < most ? heads : most;
}

int decode_attention(const struct shape *shape, const struct batch *batch, const bfloat16 *query, const struct kv *kv,
                     const float *sinks, bfloat16 *out, float *lse, int threads)
{
    struct shape s = *shape;
    const long heads = heads_of_unit(s, batch->spans, threads), units = (s.kv_heads + heads - 1) / heads;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct scratch t;
        float *memory = scratch_for(s, heads, &t);
        if (!memory)
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < batch->spans * units; unit++) {
            struct span span = span_of(batch, unit / units);
            long head = unit % units * heads, query_head = (span.row * s.kv_heads + head) * s.group;
            long some = s.kv_heads - head < heads ? s.kv_heads - head : heads;
            if (memory && span.rows == 1)
                attend(s, query + query_head * s.key_size, kv, span, batch->window, head, some,
                       sinks ? sinks + head * s.group : 0, out + query_head * s.value_size, lse ? lse + query_head : 0, t);
        }
        free(memory);
    }
    return failed;
}
