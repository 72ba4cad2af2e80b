/* Causal attention of a span of a sequence (prefill) over bfloat16 keys and values.
 *
 * One kv head at a time its keys and values are rearranged into panels (tile.h), once for all rows of the span and all
 * query heads of the group. Then up to 12 query rows at a time: scores for the keys that the last of them sees, an
 * exact fp32 softmax per row, and the weighted sum of values with weights rounded to bfloat16. Scores of 12 rows stay
 * in the second-level cache for contexts of many thousand tokens, so no online softmax is needed.
 */

#include <stdlib.h>
#include <string.h>

#include "attention.h"

struct span {
    long rows;     /* of the span; row i stands at position keys - rows + i */
    long keys;     /* how many there are, the first at position 0 */
    long window;   /* keys that a row sees, itself included; 0: all before it */
};

struct scratch {
    bfloat16 *key_panels;   /* [panel of 32 keys][pair of channels][32][2] */
    bfloat16 *value_panels; /* [panel of 32 channels][pair of keys][32][2] */
    bfloat16 *query;        /* [12][key_size] */
    bfloat16 *weights;      /* [12][keys, padded] */
    bfloat16 *out;          /* [12][value_size, padded] */
    float *scores;          /* [12][keys, padded] */
};

static long padded(long count)
{
    return (count + PANEL - 1) / PANEL * PANEL;
}

static void pack_keys(struct shape s, const bfloat16 *keys, long count, bfloat16 *panels)
{
    uint32_t *pairs = (uint32_t *)panels;
    long width = s.key_size / 2;
    for (long n = 0; n < padded(count); n++)
        for (long pair = 0; pair < width; pair++) {
            uint32_t both = 0;
            if (n < count)
                memcpy(&both, keys + n * s.kv_heads * s.key_size + 2 * pair, sizeof both);
            pairs[(n / PANEL * width + pair) * PANEL + n % PANEL] = both;
        }
}

static void pack_values(struct shape s, const bfloat16 *values, long count, bfloat16 *panels)
{
    uint32_t *pairs = (uint32_t *)panels;
    long width = padded(count) / 2, stride = s.kv_heads * s.value_size;
    for (long pair = 0; pair < width; pair++)
        for (long i = 0; i < padded(s.value_size); i++) {
            uint32_t low = 0, high = 0;
            if (i < s.value_size && 2 * pair < count)
                low = values[2 * pair * stride + i];
            if (i < s.value_size && 2 * pair + 1 < count)
                high = values[(2 * pair + 1) * stride + i];
            pairs[(i / PANEL * width + pair) * PANEL + i % PANEL] = low | high << 16;
        }
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

/* Weights of one row as bfloat16 over [start, end), zero where the row does not look. */
static void weights_of_row(struct shape s, float *scores, long start, long end, long first, long last, float sink,
                           bfloat16 *weights)
{
    long count = last - first;
    cap(scores + first, count, s.softcap);
    softmax(scores + first, count, sink);
    memset(scores + start, 0, (size_t)(first - start) * sizeof *scores);
    memset(scores + last, 0, (size_t)(end - last) * sizeof *scores);
    for (long n = start; n < end; n += 16)
        _mm256_storeu_si256((void *)(weights + n), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(scores + n)));
}

/* Query rows [begin, begin + rows) of one kv head, counted token by token, heads of the group within a token. */
static void attend_rows(struct shape s, struct span span, struct scratch t, const float *sinks, long begin, long rows,
                        const bfloat16 *query, bfloat16 *out)
{
    long heads = s.kv_heads * s.group, stride = padded(span.keys), before = span.keys - span.rows;
    long first_token = begin / s.group, last_token = (begin + rows - 1) / s.group;
    long end = padded(before + last_token + 1), start = 0;
    if (span.window && before + first_token + 1 > span.window)
        start = (before + first_token + 1 - span.window) / PANEL * PANEL;
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group;
        memcpy(t.query + row * s.key_size, query + (token * heads + head) * s.key_size, 2 * (size_t)s.key_size);
    }
    for (long n = start; n < end; n += PANEL)
        FOR_ROWS(rows, score_panel, s, t.query, t.key_panels + n * s.key_size, t.scores + n, stride)
    for (long row = 0; row < rows; row++) {
        long last = before + (begin + row) / s.group + 1, head = (begin + row) % s.group;
        long first = span.window && last > span.window ? last - span.window : 0;
        weights_of_row(s, t.scores + row * stride, start, end, first, last, sinks ? sinks[head] : -INFINITY,
                       t.weights + row * stride);
    }
    for (long i = 0; i < s.value_size; i += PANEL) {
        const bfloat16 *panel = t.value_panels + i * stride + start * PANEL;
        FOR_ROWS(rows, weigh_panel, t.weights + start, stride, panel, (end - start) / 2, t.out + i,
                 padded(s.value_size))
    }
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group;
        memcpy(out + (token * heads + head) * s.value_size, t.out + row * padded(s.value_size),
               2 * (size_t)s.value_size);
    }
}

static char *scratch_for(struct shape s, struct span span, struct scratch *t)
{
    size_t keys = (size_t)padded(span.keys), values = (size_t)padded(s.value_size), key_size = (size_t)s.key_size;
    size_t scores = 4 * ROWS_MAX * keys, halves = keys * (key_size + values + ROWS_MAX) + ROWS_MAX * (key_size + values);
    char *memory = aligned_alloc(64, (scores + 2 * halves + 63) / 64 * 64);
    if (memory) {
        t->scores = (float *)memory;
        t->key_panels = (bfloat16 *)(memory + scores);
        t->value_panels = t->key_panels + keys * key_size;
        t->weights = t->value_panels + keys * values;
        t->query = t->weights + ROWS_MAX * keys;
        t->out = t->query + ROWS_MAX * key_size;
    }
    return memory;
}

/* Returns 0, or 1 when there was no memory. `sinks` (one per query head) may be null. */
int span_attention_bf16(const struct shape *shape, const struct span *given, const bfloat16 *query, const bfloat16 *keys,
                        const bfloat16 *values, const float *sinks, bfloat16 *out, int threads)
{
    struct shape s = *shape;
    struct span span = *given;
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long head = 0; head < s.kv_heads; head++) {
        struct scratch t;
        char *memory = scratch_for(s, span, &t);
        if (!memory) {
            failed = 1;
            continue;
        }
        pack_keys(s, keys + head * s.key_size, span.keys, t.key_panels);
        pack_values(s, values + head * s.value_size, span.keys, t.value_panels);
        for (long begin = 0; begin < span.rows * s.group; begin += ROWS_MAX) {
            long left = span.rows * s.group - begin;
            attend_rows(s, span, t, sinks ? sinks + head * s.group : 0, begin, left < ROWS_MAX ? left : ROWS_MAX,
                        query + head * s.group * s.key_size, out + head * s.group * s.value_size);
        }
        free(memory);
    }
    return failed;
}
