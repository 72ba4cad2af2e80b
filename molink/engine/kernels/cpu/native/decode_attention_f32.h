/* Attention of single query rows (decoding) over the keys and values in the paged pool, in fp32 and in whatever vectors
 * the including file defines.
 *
 * One unit of work is one row and one kv head. Its keys are read block by block where they are, and walked in chunks
 * with an online softmax: highest score and sum of weights so far, and what was summed before fades when a chunk brings
 * a higher one. So each key and value is read once and none is copied, and a row's bits depend on nothing but its own
 * keys. A window is just a later first key. Scores of slots outside of it are -INFINITY, whatever the slots hold.
 */

#include "attention_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 256
#define HEADS_MAX 4 /* query heads for which a value is read once */
#define VECTORS 2   /* of a value at a time: with HEADS_MAX eight sums, and sixteen registers */
#define AHEAD 8     /* values */

/* Some keys of a row, those of its blocks: from the one numbered `from` on, up to `count`. */
struct part {
    const int32_t *blocks;
    long blocks_left; /* in the table */
    long from, count;
};

struct scratch {
    float *scores;                   /* [group][CHUNK] */
    float *sums;                     /* [group][value_size]: weighted values so far */
    float *highest, *total, *fading; /* [group] */
};

INLINE vector exponential(vector x) /* for x <= 0, to about 1e-7: 2^n by exponent, the rest by its series */
{
    x = larger(x, everywhere(-87.0f));
    words_vector power = nearest(multiplied(x, 1.44269504f));
    vector n = whole_numbers(power), p = everywhere(1.0f / 720);
    vector r = fused(n, everywhere(2.12194440e-4f), fused(n, everywhere(-0.693359375f), x));
    p = fused(p, r, everywhere(1.0f / 120));
    p = fused(p, r, everywhere(1.0f / 24));
    p = fused(p, r, everywhere(1.0f / 6));
    p = fused(p, r, everywhere(0.5f));
    p = fused(p, r, everywhere(1.0f));
    p = fused(p, r, everywhere(1.0f));
    return fused(p, as_floats(raised(sum_of_words(power, 127), 23)), zeros());
}

/* Where a slot of a part's block `n` begins; behind the last block that one again. */
INLINE long slot_of(struct part p, long n)
{
    return p.blocks[n < p.blocks_left ? n : p.blocks_left - 1] * (long)BLOCK;
}

/* Rows of a head lie apart, and a processor's own prefetching loses them: ask for what is read next. */
INLINE void ask_for(const float *row, long count)
{
    for (long i = 0; i < count; i += 16)
        _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
}

static void score(struct shape s, const float *query, const float *keys, struct part p, float *scores)
{
    for (long n = 0; n < p.count; n++) {
        const float *key = keys + (slot_of(p, n / BLOCK) + n % BLOCK) * s.key_token;
        ask_for(keys + (slot_of(p, n / BLOCK + 1) + n % BLOCK) * s.key_token, s.key_size);
        for (long g = 0; g < s.group; g++) {
            vector sum = zeros();
            for (long i = 0; i < s.key_size; i += LANES)
                sum = fused(load(query + g * s.key_size + i), load(key + i), sum);
            float x = sum_of_lanes(sum) * s.scale;
            scores[g * CHUNK + n] = s.softcap > 0 ? s.softcap * tanhf(x / s.softcap) : x;
        }
    }
}

/* Turn the scores of one head into weights under the highest score so far. */
static void weigh(float *scores, struct part p, float *highest, float *total, float *fading)
{
    long end = (p.count + LANES - 1) / LANES * LANES;
    float before = *highest, lanes[LANES];
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

/* Channels [i, i + LANES vectors) of the weighted sum, for heads [g, g + heads). */
INLINE void add_channels(const int heads, const int vectors, struct shape s, const float *values, struct part p, long g,
                         long i, struct scratch t)
{
    vector sum[HEADS_MAX][VECTORS];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[head][v] =
                multiplied(load(t.sums + (g + head) * s.value_size + i + LANES * v), t.fading[g + head]);
    for (long n = p.from; n < p.count; n++) {
        const float *value = values + (slot_of(p, n / BLOCK) + n % BLOCK) * s.value_token + i;
        ask_for(values + (slot_of(p, (n + AHEAD) / BLOCK) + (n + AHEAD) % BLOCK) * s.value_token + i, LANES * vectors);
        vector channels[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            channels[v] = load(value + LANES * v);
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++) {
            vector weight = everywhere(t.scores[(g + head) * CHUNK + n]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[head][v] = fused(channels[v], weight, sum[head][v]);
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            store(t.sums + (g + head) * s.value_size + i + LANES * v, sum[head][v]);
}

INLINE void add_heads(const int heads, struct shape s, const float *values, struct part p, long g, struct scratch t)
{
    long i = 0;
    for (; i + VECTORS * LANES <= s.value_size; i += VECTORS * LANES)
        add_channels(heads, VECTORS, s, values, p, g, i, t);
    for (; i < s.value_size; i += LANES)
        add_channels(heads, 1, s, values, p, g, i, t);
}

static void add_values(struct shape s, const float *values, struct part p, struct scratch t)
{
    long g = 0;
    for (; g + 4 <= s.group; g += 4)
        add_heads(4, s, values, p, g, t);
    if (s.group - g == 3)
        add_heads(3, s, values, p, g, t);
    else if (s.group - g == 2)
        add_heads(2, s, values, p, g, t);
    else if (s.group - g == 1)
        add_heads(1, s, values, p, g, t);
}

static void attend(struct shape s, const float *query, const float *keys, const float *values, struct span span,
                   long window, const float *sinks, float *out, float *lse, struct scratch t)
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
        score(s, query, keys, p, t.scores);
        for (long g = 0; g < s.group; g++)
            weigh(t.scores + g * CHUNK, p, t.highest + g, t.total + g, t.fading + g);
        add_values(s, values, p, t);
    }
    for (long g = 0; g < s.group; g++)
        for (long i = 0; i < s.value_size; i += LANES)
            store(out + g * s.value_size + i, multiplied(load(t.sums + g * s.value_size + i), 1 / t.total[g]));
    for (long g = 0; lse && g < s.group; g++)
        lse[g] = t.highest[g] + logf(t.total[g]); /* -inf + log 1 where nothing is seen */
}

/* Attention [row][query head][value] of the spans of one row; other rows are not written. `sinks` (one per query head)
 * may be null, and so may `lse` [row][query head], the logarithm of the sum of the exponentials of each row's scores.
 * Returns 0, or 1 when there was no memory. */
int decode_attention_f32(const struct shape *shape, const struct batch *batch, const float *query, const struct kv *kv,
                         const float *sinks, float *out, float *lse, int threads)
{
    struct shape s = *shape;
    size_t group = (size_t)s.group, sums = group * (size_t)s.value_size;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *memory = malloc(sizeof(float) * (group * CHUNK + sums + 3 * group));
        struct scratch t = {memory, memory + group * CHUNK, memory + group * CHUNK + sums,
                            memory + group * CHUNK + sums + group, memory + group * CHUNK + sums + 2 * group};
        if (!memory)
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < batch->spans * s.kv_heads; unit++) {
            struct span span = span_of(batch, unit / s.kv_heads);
            long head = unit % s.kv_heads, query_head = (span.row * s.kv_heads + head) * s.group;
            if (memory && span.rows == 1)
                attend(s, query + query_head * s.key_size, (const float *)kv->keys + head * s.key_head,
                       (const float *)kv->values + head * s.value_head, span, batch->window,
                       sinks ? sinks + head * s.group : 0, out + query_head * s.value_size, lse ? lse + query_head : 0, t);
        }
        free(memory);
    }
    return failed;
}
