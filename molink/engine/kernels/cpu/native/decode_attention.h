/* Attention of single query rows (decoding) over the keys and values in the paged pool, computed in fp32 and in whatever
 * vectors the including file defines; keys, values, queries and results are the numbers that it names.
 *
 * One unit of work is one row and some neighbouring kv heads, all of them where one thread computes. Its keys are read
 * block by block where they are, each block's for all of these heads, as it lies in memory, and walked in chunks with an
 * online softmax: highest score and sum of weights so far, and what was summed before fades when a chunk brings a higher
 * one. So each key and value is read once and none is copied, and a row's bits depend on nothing but its own keys. A
 * window is just a later first key. Scores of slots outside of it are -INFINITY, whatever the slots hold.
 */

#include "fp32_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 256
#define QUERIES_MAX 64 /* query heads of a unit, if those of one kv head are not more */
#define HEADS_MAX 4    /* query heads for which a key or a value is read once */
#define KEYS 2         /* scored at a time: with HEADS_MAX eight sums, and sixteen registers */
#define VECTORS 2      /* of a value at a time: as many */

/* Some keys of a row, those of its blocks: from the one numbered `from` on, up to `count`. */
struct part {
    const int32_t *blocks;
    long blocks_left; /* in the table */
    long from, count;
};

struct scratch {
    float *query;                    /* [query heads][key_size] */
    float *scores;                   /* [query heads][CHUNK] */
    float *sums;                     /* [query heads][value_size]: weighted values so far */
    float *highest, *total, *fading; /* [query heads] */
};

/* Where a slot of a part's block `n` begins; behind the last block that one again. */
INLINE long slot_of(struct part p, long n)
{
    return p.blocks[n < p.blocks_left ? n : p.blocks_left - 1] * (long)BLOCK;
}

/* Scores of `keys` keys of a block, `key` the first and `behind` what to ask for, for `heads` query heads. */
INLINE void score_keys(const int heads, const int keys, struct shape s, const float *query, const number *key,
                       const number *behind, float *scores)
{
    vector sum[HEADS_MAX][KEYS];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int k = 0; k < keys; k++)
            sum[head][k] = zeros();
    for (int k = 0; k < keys; k++)
        ask_for(behind + k * s.key_token, s.key_size * (long)sizeof(number));
    for (long i = 0; i < s.key_size; i += LANES) {
        vector channels[KEYS];
#pragma GCC unroll 2
        for (int k = 0; k < keys; k++)
            channels[k] = load_numbers(key + k * s.key_token + i);
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
            for (int k = 0; k < keys; k++)
                sum[head][k] = fused(load(query + head * s.key_size + i), channels[k], sum[head][k]);
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int k = 0; k < keys; k++)
            scores[head * CHUNK + k] = sum_of_lanes(sum[head][k]) * s.scale;
}

INLINE void score_heads(const int heads, struct shape s, const float *query, const number *key, const number *behind,
                        long count, float *scores)
{
    long n = 0;
    for (; n + KEYS <= count; n += KEYS)
        score_keys(heads, KEYS, s, query, key + n * s.key_token, behind + n * s.key_token, scores + n);
    for (; n < count; n++)
        score_keys(heads, 1, s, query, key + n * s.key_token, behind + n * s.key_token, scores + n);
}

/* Turn the scores of one head into weights under the highest score so far. */
static void weigh(float *scores, struct part p, float softcap, float *highest, float *total, float *fading)
{
    long end = (p.count + LANES - 1) / LANES * LANES;
    float before = *highest, lanes[LANES];
    for (long n = 0; softcap > 0 && n < p.count; n++)
        scores[n] = softcap * tanhf(scores[n] / softcap);
    for (long n = 0; n < p.from; n++)
        scores[n] = -INFINITY;
    for (long n = p.count; n < end; n++)
        scores[n] = -INFINITY;
    vector high = everywhere(before), sum = zeros();
    for (long n = 0; n < end; n += LANES)
        high = larger(high, load(scores + n));
    store(lanes, high);
    for (long i = 0; i < LANES; i++)
        *highest = lanes[i] > *highest ? lanes[i] : *highest;
    for (long n = 0; n < end; n += LANES) {
        vector weight = exponential(added(load(scores + n), everywhere(-*highest)));
        sum = added(sum, weight);
        store(scores + n, weight);
    }
    *fading = expf(before - *highest);
    *total = *total * *fading + sum_of_lanes(sum);
}

/* Add `count` values of a block to channels [i, i + LANES vectors) of the sums of `heads` heads. */
INLINE void add_channels(const int heads, const int vectors, struct shape s, const number *value, const number *behind,
                         long count, const float *weights, float *sums)
{
    vector sum[HEADS_MAX][VECTORS];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[head][v] = load(sums + head * s.value_size + LANES * v);
    for (long n = 0; n < count; n++) {
        vector channels[VECTORS];
        ask_for(behind + n * s.value_token, LANES * vectors * (long)sizeof(number));
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            channels[v] = load_numbers(value + n * s.value_token + LANES * v);
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++) {
            vector weight = everywhere(weights[head * CHUNK + n]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[head][v] = fused(channels[v], weight, sum[head][v]);
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            store(sums + head * s.value_size + LANES * v, sum[head][v]);
}

INLINE void add_heads(const int heads, struct shape s, const number *value, const number *behind, long count,
                      const float *weights, float *sums)
{
    long i = 0;
    for (; i + VECTORS * LANES <= s.value_size; i += VECTORS * LANES)
        add_channels(heads, VECTORS, s, value + i, behind + i, count, weights, sums + i);
    for (; i < s.value_size; i += LANES)
        add_channels(heads, 1, s, value + i, behind + i, count, weights, sums + i);
}

/* A call for each four query heads of a kv head, and one for those that are left. */
#define FOR_HEADS(call)                                                                                                \
    for (; g + 4 <= s.group; g += 4)                                                                                   \
        call(4);                                                                                                       \
    if (s.group - g == 3)                                                                                              \
        call(3);                                                                                                       \
    else if (s.group - g == 2)                                                                                         \
        call(2);                                                                                                       \
    else if (s.group - g == 1)                                                                                         \
        call(1);

static void score_block(struct shape s, const float *query, const number *key, const number *behind, long count,
                        float *scores)
{
    long g = 0;
#define SCORE(heads) score_heads(heads, s, query + g * s.key_size, key, behind, count, scores + g * CHUNK)
    FOR_HEADS(SCORE)
}

static void add_block(struct shape s, const number *value, const number *behind, long count, const float *weights,
                      float *sums)
{
    long g = 0;
#define ADD(heads) add_heads(heads, s, value, behind, count, weights + g * CHUNK, sums + g * s.value_size)
    FOR_HEADS(ADD)
}

/* Some keys of a row for `heads` kv heads, block by block, so that what lies together is read together. */
static void attend_chunk(struct shape s, const number *keys, const number *values, long heads, struct part p,
                         struct scratch t)
{
    const long scores = s.group * CHUNK, queries = s.group * s.key_size, sums = s.group * s.value_size;
    for (long n = 0; n < p.count; n += BLOCK) {
        const number *key = keys + slot_of(p, n / BLOCK) * s.key_token;
        const number *behind = keys + slot_of(p, n / BLOCK + 1) * s.key_token;
        long count = p.count - n < BLOCK ? p.count - n : BLOCK;
        for (long h = 0; h < heads; h++)
            score_block(s, t.query + h * queries, key + h * s.key_head, behind + h * s.key_head, count,
                        t.scores + h * scores + n);
    }
    for (long q = 0; q < heads * s.group; q++) {
        weigh(t.scores + q * CHUNK, p, s.softcap, t.highest + q, t.total + q, t.fading + q);
        for (long i = 0; i < s.value_size; i += LANES)
            store(t.sums + q * s.value_size + i, multiplied(load(t.sums + q * s.value_size + i), t.fading[q]));
    }
    for (long n = p.from; n < p.count; n = (n / BLOCK + 1) * BLOCK) {
        const number *value = values + (slot_of(p, n / BLOCK) + n % BLOCK) * s.value_token;
        const number *behind = values + (slot_of(p, n / BLOCK + 1) + n % BLOCK) * s.value_token;
        long end = (n / BLOCK + 1) * BLOCK < p.count ? (n / BLOCK + 1) * BLOCK : p.count;
        for (long h = 0; h < heads; h++)
            add_block(s, value + h * s.value_head, behind + h * s.value_head, end - n, t.scores + h * scores + n,
                      t.sums + h * sums);
    }
}

static void attend(struct shape s, const number *query, const number *keys, const number *values, struct span span,
                   long window, long heads, const float *sinks, number *out, float *lse, struct scratch t)
{
    long seen = span.start + 1, end = seen < span.keys ? seen : span.keys, rows = heads * s.group;
    long first = window && seen > window ? seen - window : 0, blocks = (end + BLOCK - 1) / BLOCK;
    memset(t.sums, 0, sizeof(float) * (size_t)(rows * s.value_size));
    for (long i = 0; i < rows * s.key_size; i += LANES)
        store(t.query + i, load_numbers(query + i));
    for (long q = 0; q < rows; q++) {
        t.highest[q] = sinks ? sinks[q] : -INFINITY;
        t.total[q] = sinks || first >= end ? 1 : 0;
    }
    for (long n = first / BLOCK * BLOCK; first < end && n < end; n += CHUNK) {
        struct part p = {span.blocks + n / BLOCK, blocks - n / BLOCK, n < first ? first - n : 0,
                         end - n < CHUNK ? end - n : CHUNK};
        attend_chunk(s, keys, values, heads, p, t);
    }
    for (long q = 0; q < rows; q++)
        for (long i = 0; i < s.value_size; i += LANES)
            store_numbers(out + q * s.value_size + i, multiplied(load(t.sums + q * s.value_size + i), 1 / t.total[q]));
    for (long q = 0; lse && q < rows; q++)
        lse[q] = t.highest[q] + logf(t.total[q]); /* -inf + log 1 where nothing is seen */
}

/* Kv heads that a thread takes together: all that lie together, but for two units for each thread. */
static long heads_of_unit(struct shape s, long spans, int threads)
{
    long units = threads > 1 ? (2 * threads + spans - 1) / spans : 1;
    long most = QUERIES_MAX / s.group > 1 ? QUERIES_MAX / s.group : 1, heads = (s.kv_heads + units - 1) / units;
    return heads < most ? heads : most;
}

static float *scratch_for(struct shape s, long heads, struct scratch *t)
{
    size_t rows = (size_t)(heads * s.group), sizes = (size_t)(s.key_size + s.value_size);
    float *memory = malloc(sizeof(float) * rows * (CHUNK + sizes + 3));
    t->query = memory;
    t->scores = t->query + rows * (size_t)s.key_size;
    t->sums = t->scores + rows * CHUNK;
    t->highest = t->sums + rows * (size_t)s.value_size;
    t->total = t->highest + rows;
    t->fading = t->total + rows;
    return memory;
}

/* Attention [row][query head][value] of the spans of one row; other rows are not written. `sinks` (one per query head)
 * may be null, and so may `lse` [row][query head], the logarithm of the sum of the exponentials of each row's scores.
 * Returns 0, or 1 when there was no memory. */
int DECODE_ATTENTION(const struct shape *shape, const struct batch *batch, const number *query, const struct kv *kv,
                     const float *sinks, number *out, float *lse, int threads)
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
                attend(s, query + query_head * s.key_size, (const number *)kv->keys + head * s.key_head,
                       (const number *)kv->values + head * s.value_head, span, batch->window, some,
                       sinks ? sinks + head * s.group : 0, out + query_head * s.value_size, lse ? lse + query_head : 0, t);
        }
        free(memory);
    }
    return failed;
}
