/* Causal attention of spans of several rows (prefill) over keys and values in the paged pool, bfloat16 or int8.
 *
 * One kv head at a time, a piece of its keys and values is rearranged into panels (tile.h), once for all rows of the span
 * and all query heads of the group. Then up to 32 query rows at a time meet the piece: scores, weights under the highest
 * score so far, rounded to bfloat16, and the weighted sum of values, which joins what the pieces before gave (online
 * softmax). So panels, scores and weights stay in the second-level cache however long the context is; whole rows of
 * scores, which were here before, went to memory and back from some thousand keys on. Pieces begin at fixed positions,
 * so a row's bits depend on nothing but its own keys. Int8 codes are exact in bfloat16 and become panels like any other;
 * a key's scale multiplies its scores, a value's scale its weights.
 */

#include <stdlib.h>

#include "amx.h"
#include "attention.h"

#define PIECE 512 /* keys: their panels take half a megabyte where a head has 256 channels */
#define WIDTH (PIECE + PANEL) /* of a row of scores or weights: rows that lie a power of two apart evict each other */
#define TILED_ROWS (2 * TILE_ROWS)

/* Keys of a piece, [first, end) of the span's, of which none before `from` is seen, and the blocks that they begin with. A
 * product of tiles sums up a panel before it adds that, so panels, too, begin at fixed positions. */
struct piece {
    long first, from, end;
    const int32_t *blocks;
};

struct scratch {
    long at_once;             /* query rows */
    bfloat16 *key_panels;     /* [panel of 32 keys][pair of channels][32][2] */
    bfloat16 *value_panels;   /* [panel of 32 channels][pair of keys][32][2] */
    bfloat16 *query;          /* [at_once][key_size] */
    bfloat16 *weights;        /* [at_once][WIDTH] */
    bfloat16 *rows;           /* [BLOCK][the larger of key_size and value_size]: decoded */
    float *scores;            /* [at_once][WIDTH] */
    float *sums;              /* [row of the span][value_size, padded]: weighted values so far */
    float *highest, *total;   /* [row of the span] */
    float *key_scales, *value_scales; /* [PIECE] */
};

static long padded(long count)
{
    return (count + PANEL - 1) / PANEL * PANEL;
}

static long least(long a, long b)
{
    return a < b ? a : b;
}

static long most(long a, long b)
{
    return a > b ? a : b;
}

/* Keys from the one numbered `at` of the piece on, a block's first; 0: nobody sees that block. */
static long seen_from(struct piece p, long at)
{
    return p.first + at < p.from ? 0 : p.end - p.first - at;
}

/* Rows of this head's keys or values in the block of key `n` of the piece, `*stride` numbers apart. Those of the block
 * behind are asked for. */
static const bfloat16 *rows_of(const void *rows, int coded, struct piece p, long n, long *stride, long size,
                               bfloat16 *decoded)
{
    long at = p.blocks[n / BLOCK] * (long)BLOCK * *stride, left = p.end - p.first - n, count = least(left, BLOCK);
    for (long row = 0; left > BLOCK && row < BLOCK; row++)
        ask_for(coded, rows, (p.blocks[n / BLOCK + 1] * (long)BLOCK + row) * *stride, size);
    if (!coded)
        return (const bfloat16 *)rows + at;
    for (long row = 0; row < count; row++)
        decode_row((const int8_t *)rows + at + row * *stride, size, decoded + row * size);
    *stride = size;
    return decoded;
}

static void pack_keys(struct shape s, const void *keys, int coded, struct piece p, struct scratch t)
{
    uint32_t *pairs = (uint32_t *)t.key_panels;
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    long width = s.key_size / 2;
    for (long at = 0; at < padded(p.end - p.first); at += BLOCK) {
        long count = seen_from(p, at), stride = s.key_token;
        __mmask16 mask = first_lanes(count);
        const bfloat16 *key = t.rows;
        if (mask)
            key = rows_of(keys, coded, p, at, &stride, s.key_size, t.rows);
        __m512i index = _mm512_mullo_epi32(numbers, _mm512_set1_epi32((int)(stride / 2)));
        uint32_t *out = pairs + at / PANEL * width * PANEL + at % PANEL;
        for (long pair = 0; pair < width; pair++)
            _mm512_storeu_si512(out + pair * PANEL, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, index,
                                                                                key + 2 * pair, 4));
    }
}

static void pack_values(struct shape s, const void *values, int coded, struct piece p, struct scratch t)
{
    uint32_t *pairs = (uint32_t *)t.value_panels;
    for (long at = 0; at < padded(p.end - p.first); at += BLOCK) {
        long count = seen_from(p, at), stride = s.value_token;
        const bfloat16 *value = t.rows;
        if (count > 0)
            value = rows_of(values, coded, p, at, &stride, s.value_size, t.rows);
        for (long n = 0; n < BLOCK; n += 2)
            for (long i = 0; i < padded(s.value_size); i += 16) {
                __mmask16 is_there = i < s.value_size ? 0xffff : 0;
                const bfloat16 *from = value + n * stride + i;
                __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(n < count ? is_there : 0, from));
                __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(n + 1 < count ? is_there : 0, from + stride));
                _mm512_storeu_si512(pairs + (i / PANEL * (PIECE / 2) + (at + n) / 2) * PANEL + i % PANEL,
                                    _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
            }
    }
}

/* Rearrange the keys and values of one kv head. */
static void pack_head(struct shape s, const struct kv *kv, long head, struct piece p, struct scratch t)
{
    int coded = kv->key_scales != 0;
    long bytes = coded ? 1 : 2;
    pack_keys(s, (const char *)kv->keys + bytes * head * s.key_head, coded, p, t);
    pack_values(s, (const char *)kv->values + bytes * head * s.value_head, coded, p, t);
    for (long n = p.from; coded && n < p.end; n += BLOCK) {
        long at = p.blocks[(n - p.first) / BLOCK] * (long)BLOCK * s.kv_heads + head, count = least(p.end - n, BLOCK);
        decode_scales(kv->key_scales + at, s.kv_heads, count, t.key_scales + n - p.first);
        decode_scales(kv->value_scales + at, s.kv_heads, count, t.value_scales + n - p.first);
    }
}

static inline __attribute__((always_inline)) void
multiply_by_vectors(const int rows, const bfloat16 *x, long stride, const bfloat16 *panel, long pairs, float *out,
                    long out_stride)
{
    __m512 sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[row][v] = _mm512_setzero_ps();
    multiply_tile(rows, x, stride, panel, pairs, 0, sum);
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(out + row * out_stride + 16 * v, sum[row][v]);
}

/* Products of some rows of x with the 32 columns of a panel. */
static WITH_AMX void multiply(int by_tiles, long rows, const bfloat16 *x, long stride, const bfloat16 *panel, long pairs,
                              float *out, long out_stride)
{
    if (!by_tiles) {
        FOR_ROWS(rows, multiply_by_vectors, x, stride, panel, pairs, out, out_stride)
    } else if (rows > TILE_ROWS)
        multiply_tiles(1, x, x + TILE_ROWS * stride, stride, panel, pairs, 0, out, out_stride);
    else
        multiply_tiles(0, x, 0, stride, panel, pairs, 0, out, out_stride);
}

/* What a row sees of a piece, [first, last) of its keys. */
struct sight {
    long first, last;
};

static inline __attribute__((always_inline)) __mmask16 seen_lanes(struct sight seen, long n)
{
    return n >= seen.first && n + 16 <= seen.last ? 0xffff : lanes_between(seen.first - n, seen.last - n);
}

/* Turn scores of one row, of keys [start, end) of a piece, into weights as bfloat16 under the highest score so far, zero
 * where it does not look; scales of keys and values may be null. Returns the factor of what was summed up before. */
static float weigh_scores(struct shape s, const float *key_scales, const float *value_scales, float *scores, long start,
                          long end, struct sight seen, float *highest, float *total, bfloat16 *weights)
{
    __m512 high = _mm512_set1_ps(*highest), sum = _mm512_setzero_ps();
    for (long n = start; n < end; n += 16) {
        __m512 score = _mm512_mul_ps(_mm512_loadu_ps(scores + n), _mm512_set1_ps(s.scale));
        if (key_scales)
            score = _mm512_mul_ps(score, _mm512_loadu_ps(key_scales + n));
        _mm512_storeu_ps(scores + n, score);
        if (s.softcap > 0) {
            cap(scores + n, 16, s.softcap);
            score = _mm512_loadu_ps(scores + n);
        }
        high = _mm512_mask_max_ps(high, seen_lanes(seen, n), high, score);
    }
    float before = *highest, now = _mm512_reduce_max_ps(high);
    for (long n = start; n < end; n += 16) {
        __m512 score = _mm512_sub_ps(_mm512_loadu_ps(scores + n), _mm512_set1_ps(now));
        __mmask16 mask = seen_lanes(seen, n);
        __m512 weight = _mm512_maskz_mov_ps(mask, exponential(score));
        sum = _mm512_add_ps(sum, weight);
        if (value_scales)
            weight = _mm512_maskz_mul_ps(mask, weight, _mm512_loadu_ps(value_scales + n));
        _mm256_storeu_si256((void *)(weights + n), (__m256i)_mm512_cvtneps_pbh(weight));
    }
    float fading = seen.first < seen.last ? expf(before - now) : 1;
    *total = *total * fading + _mm512_reduce_add_ps(sum);
    *highest = now;
    return fading;
}

/* Query rows [begin, begin + rows) of one kv head, counted token by token, heads of the group within a token, and what
 * they see of a piece. */
static void attend_rows(struct shape s, struct span span, long window, int coded, struct piece p,
                        struct scratch t, long begin, long rows, const bfloat16 *query)
{
    int by_tiles = t.at_once == TILED_ROWS;
    long heads = s.kv_heads * s.group, values = padded(s.value_size);
    long seen = span.start + begin / s.group + 1; /* by the first row, the last one sees the most */
    long start = window ? most(seen - window - p.first, 0) / PANEL * PANEL : 0;
    long end = padded(least(span.start + (begin + rows - 1) / s.group + 1, p.end) - p.first);
    if (start >= end)
        return;
    for (long row = 0; row < rows; row++) {
        long token = (begin + row) / s.group, head = (begin + row) % s.group;
        memcpy(t.query + row * s.key_size, query + (token * heads + head) * s.key_size, 2 * (size_t)s.key_size);
    }
    for (long n = start; n < end; n += PANEL)
        multiply(by_tiles, rows, t.query, s.key_size, t.key_panels + n * s.key_size, s.key_size / 2, t.scores + n, WIDTH);
    float fading[TILED_ROWS], products[TILED_ROWS * PANEL];
    for (long row = 0; row < rows; row++) {
        long last = span.start + (begin + row) / s.group + 1;
        struct sight seen = {window ? most(last - window - p.first, 0) : 0, least(last, p.end) - p.first};
        fading[row] = weigh_scores(s, coded ? t.key_scales : 0, coded ? t.value_scales : 0, t.scores + row * WIDTH, start,
                                   end, seen, t.highest + begin + row, t.total + begin + row, t.weights + row * WIDTH);
    }
    for (long i = 0; i < values; i += PANEL) {
        multiply(by_tiles, rows, t.weights + start, WIDTH, t.value_panels + i * PIECE + start * PANEL,
                 (end - start) / 2, products, PANEL);
        for (long n = 0; n < rows * PANEL; n += 16) {
            float *sums = t.sums + (begin + n / PANEL) * values + i + n % PANEL;
            _mm512_storeu_ps(sums, _mm512_fmadd_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(fading[n / PANEL]),
                                                   _mm512_loadu_ps(products + n)));
        }
    }
}

static char *scratch_for(struct shape s, long rows, struct scratch *t)
{
    size_t keys = (size_t)s.key_size, values = (size_t)padded(s.value_size), at_once = (size_t)t->at_once;
    size_t floats = WIDTH * (at_once + 2) + (size_t)rows * (values + 2);
    size_t halves = (PIECE + BLOCK) * (keys + values) + at_once * (keys + WIDTH);
    char *memory = aligned_alloc(64, (4 * floats + 2 * halves + 63) / 64 * 64);
    if (memory) {
        t->scores = (float *)memory;
        t->key_scales = t->scores + WIDTH * at_once;
        t->value_scales = t->key_scales + WIDTH;
        t->sums = t->value_scales + WIDTH;
        t->highest = t->sums + (size_t)rows * values;
        t->total = t->highest + rows;
        t->key_panels = (bfloat16 *)(memory + 4 * floats);
        t->value_panels = t->key_panels + PIECE * keys;
        t->weights = t->value_panels + PIECE * values;
        t->query = t->weights + WIDTH * at_once;
        t->rows = t->query + at_once * keys;
    }
    return memory;
}

/* One kv head of a span. */
static void attend_span(struct shape s, struct span span, long window, const struct kv *kv, long head,
                        const float *sinks, struct scratch t, const bfloat16 *query, bfloat16 *out, float *lse)
{
    long rows = span.rows * s.group, heads = s.kv_heads * s.group, values = padded(s.value_size);
    long from = window ? most(span.start + 1 - window, 0) / BLOCK * BLOCK : 0;
    memset(t.sums, 0, sizeof(float) * (size_t)(rows * values));
    for (long row = 0; row < rows; row++) {
        t.highest[row] = sinks ? sinks[row % s.group] : -INFINITY;
        t.total[row] = sinks ? 1 : 0;
    }
    for (long end = least(span.start + span.rows, span.keys), behind; from < end; from = behind) {
        long first = from / PANEL * PANEL;
        behind = least((from / PIECE + 1) * PIECE, end);
        struct piece p = {first, from, behind, span.blocks + first / BLOCK};
        pack_head(s, kv, head, p, t);
        for (long begin = 0; begin < rows; begin += t.at_once)
            attend_rows(s, span, window, kv->key_scales != 0, p, t, begin, least(rows - begin, t.at_once), query);
    }
    for (long row = 0; row < rows; row++) {
        long at = row / s.group * heads + row % s.group;
        float total = t.total[row] > 0 ? t.total[row] : 1; /* nothing is seen: -inf + log 1 */
        for (long i = 0; i < s.value_size; i += 16) {
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(t.sums + row * values + i), _mm512_set1_ps(1 / total));
            _mm256_storeu_si256((void *)(out + at * s.value_size + i), (__m256i)_mm512_cvtneps_pbh(sum));
        }
        if (lse)
            lse[at] = t.highest[row] + logf(total);
    }
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
        struct scratch t = {.at_once = by_tiles ? TILED_ROWS : ROWS_MAX};
        char *memory = scratch_for(s, span.rows * s.group, &t);
        if (!memory) {
            failed = 1;
            continue;
        }
        long head = unit % s.kv_heads, query_head = (span.row * s.kv_heads + head) * s.group;
        if (by_tiles)
            begin_tiles(TILE_ROWS);
        attend_span(s, span, batch->window, kv, head, sinks ? sinks + head * s.group : 0, t,
                    query + query_head * s.key_size, out + query_head * s.value_size, lse ? lse + query_head : 0);
        if (by_tiles)
            end_tiles();
        free(memory);
    }
    return failed;
}
