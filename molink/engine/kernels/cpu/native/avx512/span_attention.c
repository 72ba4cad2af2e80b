/* Causal attention of spans of several rows (prefill) over keys and values in the paged pool, bfloat16 or int8.
 *
 * One kv head at a time its keys and values are rearranged into panels (tile.h), once for all rows of the span and all
 * query heads of the group. Then up to 12 query rows at a time: scores for the keys that the last of them sees, an
 * exact fp32 softmax per row, and the weighted sum of values with weights rounded to bfloat16. Scores of so many rows stay
 * in the second-level cache for contexts of many thousand tokens, so no online softmax is needed. Int8
 * codes are exact in bfloat16 and become panels like any other; a key's scale multiplies its scores, a value's scale its
 * weights.
 */

#include <stdlib.h>

#include "amx.h"
#include "attention.h"

/* What rows of a span see; keys are counted from the first one that any of them does, or from shortly before. */
struct seen {
    long rows, keys;
    long before; /* keys before the first row */
    long window;
    const int32_t *blocks;
};

struct scratch {
    long at_once;           /* query rows */
    bfloat16 *key_panels;   /* [panel of 32 keys][pair of channels][32][2] */
    bfloat16 *value_panels; /* [panel of 32 channels][pair of keys][32][2] */
    bfloat16 *query;        /* [at_once][key_size] */
    bfloat16 *weights;      /* [at_once][keys, padded] */
    bfloat16 *out;          /* [at_once][value_size, padded] */
    bfloat16 *row;          /* [2][the larger of key_size and value_size]: decoded */
    float *scores;          /* [at_once][keys, padded] */
    float *key_scales, *value_scales; /* [keys, padded]; null: not in int8 */
};

static long padded(long count)
{
    return (count + PANEL - 1) / PANEL * PANEL;
}

/* Row `n` of this head's keys or values as bfloat16; null behind the last one. */
static const bfloat16 *row_of(const void *rows, int coded, struct seen seen, long n, long stride, long size,
                              bfloat16 *decoded)
{
    if (n >= seen.keys)
        return 0;
    long at = (seen.blocks[n / BLOCK] * (long)BLOCK + n % BLOCK) * stride;
    if (!coded)
        return (const bfloat16 *)rows + at;
    decode_row((const int8_t *)rows + at, size, decoded);
    return decoded;
}

static void pack_keys(struct shape s, const void *keys, int coded, struct seen seen, struct scratch t)
{
    uint32_t *pairs = (uint32_t *)t.key_panels;
    long width = s.key_size / 2;
    for (long n = 0; n < padded(seen.keys); n++) {
        const bfloat16 *key = row_of(keys, coded, seen, n, s.key_token, s.key_size, t.row);
        for (long pair = 0; pair < width; pair++) {
            uint32_t both = 0;
            if (key)
                memcpy(&both, key + 2 * pair, sizeof both);
            pairs[(n / PANEL * width + pair) * PANEL + n % PANEL] = both;
        }
    }
}

static void pack_values(struct shape s, const void *values, int coded, struct seen seen, struct scratch t)
{
    uint32_t *pairs = (uint32_t *)t.value_panels;
    long width = padded(seen.keys) / 2, stride = s.value_token;
    for (long pair = 0; pair < width; pair++) {
        const bfloat16 *first = row_of(values, coded, seen, 2 * pair, stride, s.value_size, t.row);
        const bfloat16 *second = row_of(values, coded, seen, 2 * pair + 1, stride, s.value_size, t.row + s.value_size);
        for (long i = 0; i < padded(s.value_size); i++) {
            uint32_t low = 0, high = 0;
            if (i < s.value_size && first)
                low = first[i];
            if (i < s.value_size && second)
                high = second[i];
            pairs[(i / PANEL * width + pair) * PANEL + i % PANEL] = low | high << 16;
        }
    }
}

static void multiply(float *numbers, const float *by, long count)
{
    for (long n = 0; n < count; n++)
        numbers[n] *= by[n];
}

static inline __attribute__((always_inline)) void
score_panel(const int rows, struct shape s, const bfloat16 *query, const bfloat16 *panel, float *scores, long stride)
{
    __m512 sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[row][v] = _mm512_setzero_ps();
    multiply_tile(rows, query, s.key_size, panel, s.key_size / 2, 0, sum);
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(scores + row * stride + 16 * v, _mm512_mul_ps(sum[row][v], _mm512_set1_ps(s.scale)));
}

static inline __attribute__((always_inline)) void
weigh_panel(const int rows, const bfloat16 *weights, long stride, const bfloat16 *panel, long pairs, bfloat16 *out,
            long out_stride)
{
    __m512 sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[row][v] = _mm512_setzero_ps();
    multiply_tile(rows, weights, stride, panel, pairs, 0, sum);
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm256_storeu_si256((void *)(out + row * out_stride + 16 * v),
                                (__m256i)_mm512_cvtneps_pbh(sum[row][v]));
}

#define TILED_ROWS (2 * TILE_ROWS)

/* Scores of all rows in the scratch for the keys [start, end). */
static WITH_AMX void score_by_tiles(long rows, struct shape s, struct scratch t, long start, long end, long stride)
{
    for (long n = start; n < end; n += PANEL) {
        const bfloat16 *panel = t.key_panels + n * s.key_size, *second = t.query + TILE_ROWS * s.key_size;
        if (rows > TILE_ROWS)
            multiply_tiles(1, t.query, second, s.key_size, panel, s.key_size / 2, 0, t.scores + n, stride);
        else
            multiply_tiles(0, t.query, 0, s.key_size, panel, s.key_size / 2, 0, t.scores + n, stride);
    }
    for (long row = 0; row < rows; row++)
        for (long n = start; n < end; n++)
            t.scores[row * stride + n] *= s.scale;
}

/* Weighted sums of the values [start, end), all rows. */
static WITH_AMX void weigh_by_tiles(long rows, struct shape s, struct scratch t, long start, long end, long stride)
{
    float sum[TILED_ROWS * PANEL];
    for (long i = 0; i < s.value_size; i += PANEL) {
        const bfloat16 *panel = t.value_panels + i * stride + start * PANEL;
        const bfloat16 *weights = t.weights + start, *second = weights + TILE_ROWS * stride;
        if (rows > TILE_ROWS)
            multiply_tiles(1, weights, second, stride, panel, (end - start) / 2, 0, sum, PANEL);
        else
            multiply_tiles(0, weights, 0, stride, panel, (end - start) / 2, 0, sum, PANEL);
        for (long n = 0; n < rows * PANEL; n += 16)
            _mm256_storeu_si256((void *)(t.out + n / PANEL * padded(s.value_size) + i + n % PANEL),
                                (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(sum + n)));
    }
}

static void score_by_vectors(long rows, struct shape s, struct scratch t, long start, long end, long stride)
{
    for (long n = start; n < end; n += PANEL)
        FOR_ROWS(rows, score_panel, s, t.query, t.key_panels + n * s.key_size, t.scores + n, stride)
}

static void weigh_by_vectors(long rows, struct shape s, struct scratch t, long start, long end, long stride)
{
    for (long i = 0; i < s.value_size; i += PANEL) {
        const bfloat16 *panel = t.value_panels + i * stride + start * PANEL;
        FOR_ROWS(rows, weigh_panel, t.weights + start, stride, panel, (end - start) / 2, t.out + i,
                 padded(s.value_size))
    }
}

/* Weights of one row as bfloat16 over [start, end), zero where the row does not look; returns its log-sum-exp. */
static float weights_of_row(struct shape s, struct scratch t, float *scores, long start, long end, long first, long last,
                           float sink, bfloat16 *weights)
{
    long count = last - first;
    if (count <= 0) {
        memset(weights + start, 0, (size_t)(end - start) * sizeof *weights);
        return sink;
    }
    if (t.key_scales)
        multiply(scores + first, t.key_scales + first, count);
    cap(scores + first, count, s.softcap);
    float log_sum = softmax(scores + first, count, sink);
    if (t.value_scales)
        multiply(scores + first, t.value_scales + first, count);
    memset(scores + start, 0, (size_t)(first - start) * sizeof *scores);
    memset(scores + last, 0, (size_t)(end - last) * sizeof *scores);
    for (long n = start; n < end; n += 16)
        _mm256_storeu_si256((void *)(weights + n), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(scores + n)));
    return log_sum;
}

/* Query rows [begin, begin + rows) of one kv head, counted token by token, heads of the group within a token. */
static void attend_rows(struct shape s, struct seen seen, struct scratch t, const float *sinks, long begin, long rows,
                        const bfloat16 *query, bfloat16 *out, float *lse)
{
    long heads = s.kv_heads * s.group, stride = padded(seen.keys), before = seen.before;
    long first_token = begin / s.group, last_token = (begin + rows - 1) / s.group;
    long end = padded(before + last_token + 1 < seen.keys ? before + last_token + 1 : seen.keys), start = 0;
    if (seen.window && before + first_token + 1 > seen.window)
        start = (before + first_token + 1 - seen.window) / PANEL * PANEL;
    if (start > end)
        start = end;
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group;
        memcpy(t.query + row * s.key_size, query + (token * heads + head) * s.key_size, 2 * (size_t)s.key_size);
    }
    (t.at_once == TILED_ROWS ? score_by_tiles : score_by_vectors)(rows, s, t, start, end, stride);
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group, last = before + token + 1;
        long first = seen.window && last > seen.window ? last - seen.window : 0;
        if (last > seen.keys)
            last = seen.keys;
        float log_sum = weights_of_row(s, t, t.scores + row * stride, start, end, first, last,
                                       sinks ? sinks[head] : -INFINITY, t.weights + row * stride);
        if (lse)
            lse[token * heads + head] = log_sum;
    }
    (t.at_once == TILED_ROWS ? weigh_by_tiles : weigh_by_vectors)(rows, s, t, start, end, stride);
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group;
        memcpy(out + (token * heads + head) * s.value_size, t.out + row * padded(s.value_size),
               2 * (size_t)s.value_size);
    }
}

static char *scratch_for(struct shape s, struct seen seen, int coded, struct scratch *t)
{
    size_t keys = (size_t)padded(seen.keys), values = (size_t)padded(s.value_size), key_size = (size_t)s.key_size;
    size_t floats = ((size_t)t->at_once + (coded ? 2 : 0)) * keys;
    size_t halves = keys * (key_size + values + (size_t)t->at_once) + (size_t)t->at_once * (key_size + values) + 2 * (key_size + values);
    char *memory = aligned_alloc(64, (4 * floats + 2 * halves + 63) / 64 * 64);
    if (memory) {
        t->scores = (float *)memory;
        t->key_scales = coded ? t->scores + (size_t)t->at_once * keys : 0;
        t->value_scales = coded ? t->key_scales + keys : 0;
        t->key_panels = (bfloat16 *)(memory + 4 * floats);
        t->value_panels = t->key_panels + keys * key_size;
        t->weights = t->value_panels + keys * values;
        t->query = t->weights + (size_t)t->at_once * keys;
        t->out = t->query + (size_t)t->at_once * key_size;
        t->row = t->out + (size_t)t->at_once * values;
    }
    return memory;
}

/* Rearrange the keys and values of one kv head. */
static void pack_head(struct shape s, const struct kv *kv, long head, struct seen seen, struct scratch t)
{
    int coded = kv->key_scales != 0;
    long bytes = coded ? 1 : 2;
    pack_keys(s, (const char *)kv->keys + bytes * head * s.key_head, coded, seen, t);
    pack_values(s, (const char *)kv->values + bytes * head * s.value_head, coded, seen, t);
    for (long n = 0; coded && n < seen.keys; n += BLOCK) {
        long at = seen.blocks[n / BLOCK] * (long)BLOCK * s.kv_heads + head;
        long count = seen.keys - n < BLOCK ? seen.keys - n : BLOCK;
        decode_scales(kv->key_scales + at, s.kv_heads, count, t.key_scales + n);
        decode_scales(kv->value_scales + at, s.kv_heads, count, t.value_scales + n);
    }
}

static struct seen seen_by(struct span span, long window)
{
    long first = window && span.start + 1 > window ? (span.start + 1 - window) / BLOCK * BLOCK : 0;
    long end = span.start + span.rows < span.keys ? span.start + span.rows : span.keys;
    return (struct seen){span.rows, end > first ? end - first : 0, span.start - first, window,
                         span.blocks + first / BLOCK};
}

int span_attention(const struct shape *shape, const struct batch *batch, const bfloat16 *query, const struct kv *kv,
                   const float *sinks, bfloat16 *out, float *lse, int threads)
{
    struct shape s = *shape;
    const int by_tiles = amx_allowed();
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (long unit = 0; unit < batch->spans * s.kv_heads; unit++) {
        struct span span = span_of(batch, unit / s.kv_heads);
        if (span.rows == 1)
            continue;
        struct seen seen = seen_by(span, batch->window);
        struct scratch t = {.at_once = by_tiles ? TILED_ROWS : ROWS_MAX};
        char *memory = scratch_for(s, seen, kv->key_scales != 0, &t);
        if (!memory) {
            failed = 1;
            continue;
        }
        long head = unit % s.kv_heads, query_head = (span.row * s.kv_heads + head) * s.group;
        pack_head(s, kv, head, seen, t);
        if (by_tiles)
            begin_tiles(TILE_ROWS);
        for (long begin = 0; begin < span.rows * s.group; begin += t.at_once) {
            long left = span.rows * s.group - begin;
            attend_rows(s, seen, t, sinks ? sinks + head * s.group : 0, begin, left < t.at_once ? left : t.at_once,
                        query + query_head * s.key_size, out + query_head * s.value_size, lse ? lse + query_head : 0);
        }
        if (by_tiles)
            end_tiles();
        free(memory);
    }
    return failed;
}
