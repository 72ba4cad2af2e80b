/* Causal attention of spans of several rows (prefill) over keys and values in the paged pool, computed in fp32 and in
 * whatever vectors the including file defines; queries and results are the numbers that it names, keys and values too or
 * int8 codes.
 *
 * Lanes of vectors are query rows: all rows of a span that meet the same kv head, token by token, heads of the group
 * within a token, some vectors of them at a time (a tile). So keys and values are met as they lie, number by number, and
 * only queries, which are few, are turned; weights leave a product as the next one takes them; and the highest score and
 * the sum of a row are those of a lane. A piece of the keys and values is widened to fp32, once for all tiles, and stays
 * in the second-level cache while they meet it one after the other (online softmax). Pieces begin at fixed positions and
 * each lane adds up in order, so a row's bits depend on nothing but its own keys.
 */

#include "fp32_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 128
#define ROWS (LANES * VECTORS) /* of a tile */
#define GAP 16                 /* numbers between rows of a piece: those a power of two apart evict each other */
#define LEAST -1e38f           /* below any score; -INFINITY less itself is no number */
#define LOG2_E 1.44269504f

/* Keys of a span from the one numbered `first` on, a block's first. */
struct piece {
    const int32_t *blocks;
    long first, count;
};

struct scratch {
    float *query;                     /* [tile][key_size][ROWS] */
    float *sums;                      /* [tile][value_size][ROWS]: weighted values so far */
    float *highest, *total;           /* [tile][ROWS] */
    float *scores;                    /* [PIECE][ROWS] */
    float *keys, *values;             /* [PIECE][size + GAP] */
    float *key_scales, *value_scales; /* [PIECE], or null where nothing is in int8 */
};

/* A tile of a span: `rows` query rows that count, counted from `begin` on. */
struct tile {
    struct span span;
    long begin, rows, window;
};

static long least(long a, long b) { return a < b ? a : b; }
static long most(long a, long b) { return a > b ? a : b; }

/* Rows of one kv head, `token` numbers apart, each times its scale where there are some. */
INLINE void widen(const int coded, const void *rows, long token, long size, struct piece p, const float *scales, float *out)
{
    const long bytes = coded ? 1 : sizeof(number);
    for (long n = 0; n < p.count; n++, out += size + GAP) {
        const char *row = (const char *)rows + (p.blocks[n / BLOCK] * (long)BLOCK + n % BLOCK) * token * bytes;
        for (long i = 0; i < size; i += LANES) {
            vector some = coded ? load_codes((const int8_t *)row + i) : load_numbers((const number *)row + i);
            store(out + i, scales ? multiplied(some, scales[n]) : some);
        }
    }
    memset(out, 0, sizeof(float) * (size_t)((STEPS - 1) * (size + GAP))); /* they meet together with the last ones */
}

/* Some rows of a piece, which is next: they lie apart, and a processor's own prefetching loses them. */
static void ask_for_rows(struct shape s, const struct kv *kv, long head, struct piece p, long n, long end)
{
    const long bytes = kv->key_scales ? 1 : sizeof(number);
    for (end = least(end, p.count); n < end; n++) {
        long slot = p.blocks[n / BLOCK] * (long)BLOCK + n % BLOCK;
        ask_for((const char *)kv->keys + (slot * s.key_token + head * s.key_head) * bytes, s.key_size * bytes);
        ask_for((const char *)kv->values + (slot * s.value_token + head * s.value_head) * bytes, s.value_size * bytes);
    }
}

static void widen_scales(const uint16_t *scales, long kv_heads, struct piece p, float *out)
{
    for (long n = 0; n < p.count; n++) {
        uint32_t bits = scales[(p.blocks[n / BLOCK] * (long)BLOCK + n % BLOCK) * kv_heads];
        bits <<= 16;
        memcpy(out + n, &bits, sizeof bits);
    }
}

/* A value's scale multiplies its weights: times the weight of a row that leaves it out it may be no number. */
static void widen_piece(struct shape s, const struct kv *kv, long head, struct piece p, struct scratch t)
{
    if (t.key_scales) {
        widen_scales(kv->key_scales + head, s.kv_heads, p, t.key_scales);
        widen_scales(kv->value_scales + head, s.kv_heads, p, t.value_scales);
        widen(1, (const int8_t *)kv->keys + head * s.key_head, s.key_token, s.key_size, p, t.key_scales, t.keys);
        widen(1, (const int8_t *)kv->values + head * s.value_head, s.value_token, s.value_size, p, 0, t.values);
    } else {
        widen(0, (const number *)kv->keys + head * s.key_head, s.key_token, s.key_size, p, 0, t.keys);
        widen(0, (const number *)kv->values + head * s.value_head, s.value_token, s.value_size, p, 0, t.values);
    }
}

INLINE void set_zero(const int vectors, vector sum[STEPS][VECTORS])
{
#pragma GCC unroll 12
    for (int k = 0; k < STEPS; k++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[k][v] = zeros();
}

/* sum += products of STEPS numbers, `across` apart, with a tile's rows, both for `count` steps on. */
INLINE void add_products(const int vectors, const float *few, long across, long along, const float *rows, long count,
                         vector sum[STEPS][VECTORS])
{
    for (long n = 0; n < count; n++, few += along, rows += ROWS) {
        vector row[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            row[v] = load(rows + LANES * v);
#pragma GCC unroll 12
        for (int k = 0; k < STEPS; k++) {
            vector one = everywhere(few[k * across]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[k][v] = fused(one, row[v], sum[k][v]);
        }
    }
}

/* Scores [key][row] of keys [start, stop), a multiple of STEPS. Channels are added up in parts, as large ones cost what
 * follows them its last digits. */
INLINE void score(const int vectors, struct shape s, const float *query, const float *keys, long start, long stop,
                  float *scores)
{
    for (long n = start; n < stop; n += STEPS)
        for (long i = 0; i < s.key_size; i += PART) {
            vector sum[STEPS][VECTORS];
            set_zero(vectors, sum);
            add_products(vectors, keys + n * (s.key_size + GAP) + i, s.key_size + GAP, 1, query + i * ROWS,
                         least(s.key_size - i, PART), sum);
#pragma GCC unroll 12
            for (int k = 0; k < STEPS; k++)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    float *to = scores + (n + k) * ROWS + LANES * v;
                    vector scaled = multiplied(sum[k][v], s.scale);
                    store(to, i ? added(load(to), scaled) : scaled);
                }
        }
}

/* exp(x) for x <= 87, to about 2e-7: 2^n by exponent, the rest by a polynomial; exactly 1 at 0 and 0 up to -88.03. Of
 * several vectors at a time, as one is a long chain. */
INLINE void exponentials(const int count, vector x[])
{
    static const float terms[] = {1.326472731e-3f, 9.671512991e-3f, 5.550733581e-2f, 0.2402224243f, 0.6931470037f, 1};
    words_vector power[STEPS];
    vector p[STEPS];
#pragma GCC unroll 12
    for (int k = 0; k < count; k++) {
        x[k] = larger(everywhere(-127), multiplied(x[k], LOG2_E)); /* in this order what is no number stays none */
        power[k] = nearest(x[k]);
    }
#pragma GCC unroll 12
    for (int k = 0; k < count; k++) {
        x[k] = difference(x[k], whole_numbers(power[k]));
        p[k] = everywhere(terms[0]);
    }
#pragma GCC unroll 5
    for (int term = 1; term < 6; term++)
#pragma GCC unroll 12
        for (int k = 0; k < count; k++)
            p[k] = fused(p[k], x[k], everywhere(terms[term]));
#pragma GCC unroll 12
    for (int k = 0; k < count; k++)
        x[k] = product(p[k], as_floats(raised(sum_of_words(power[k], 127), 23)));
}

/* softcap * tanh(score / softcap), by 2 / (1 + exp(-2x)) - 1. */
static void cap(float *scores, long count, float softcap)
{
    for (long n = 0; n < count; n += LANES) {
        vector x[1] = {multiplied(larger(everywhere(-40 * softcap), load(scores + n)), -2 / softcap)};
        exponentials(1, x);
        vector part = quotient(everywhere(2 * softcap), added(everywhere(1), x[0]));
        store(scores + n, added(part, everywhere(-softcap)));
    }
}

/* Scores of keys that a row does not see become -INFINITY, whatever they were. */
static void hide(struct shape s, struct tile tile, struct piece p, long start, long stop, float *scores)
{
    for (long row = 0; row < tile.rows; row++) {
        long end = tile.span.start + (tile.begin + row) / s.group + 1 - p.first, last = least(end, p.count);
        long first = tile.window ? least(end - tile.window, stop) : 0;
        for (long n = start; n < first; n++)
            scores[n * ROWS + row] = -INFINITY;
        for (long n = most(last, start); n < stop; n++)
            scores[n * ROWS + row] = -INFINITY;
    }
}

/* Turn scores into weights under the highest score so far, times the values' scales if there are any; `fading` is by
 * what factor that made shrink what was summed up before. */
INLINE void weigh(const int vectors, float *scores, long start, long stop, const float *scales, float *highest,
                  float *total, vector fading[VECTORS])
{
    vector high[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        high[v] = load(highest + LANES * v);
    for (long n = start; n < stop; n++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            high[v] = larger(high[v], load(scores + n * ROWS + LANES * v));
    for (int v = 0; v < vectors; v++) {
        vector base = larger(everywhere(LEAST), high[v]), sum = zeros(), x[STEPS];
        for (long n = start; n < stop; n += STEPS) {
            float *from = scores + n * ROWS + LANES * v;
#pragma GCC unroll 12
            for (int k = 0; k < STEPS; k++)
                x[k] = difference(load(from + k * ROWS), base);
            exponentials(STEPS, x);
#pragma GCC unroll 12
            for (int k = 0; k < STEPS; k++) {
                sum = added(sum, x[k]);
                store(from + k * ROWS, scales ? where_not_zero(x[k], multiplied(x[k], scales[n + k])) : x[k]);
            }
        }
        x[0] = difference(load(highest + LANES * v), base);
        exponentials(1, x);
        fading[v] = x[0];
        store(highest + LANES * v, high[v]);
        store(total + LANES * v, fused(load(total + LANES * v), fading[v], sum));
    }
}

/* Add values weighted by `weights` [key][row] to what they gave before, which fades. */
INLINE void add_values(const int vectors, struct shape s, const float *values, const float *weights, long count,
                       const vector *fading, float *sums)
{
    for (long i = 0; i < s.value_size; i += STEPS, sums += STEPS * ROWS) {
        vector sum[STEPS][VECTORS];
        set_zero(vectors, sum);
        add_products(vectors, values + i, 1, s.value_size + GAP, weights, count, sum);
#pragma GCC unroll 12
        for (int k = 0; k < STEPS; k++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                float *to = sums + k * ROWS + LANES * v;
                store(to, fused(load(to), fading[v], sum[k][v]));
            }
    }
}

/* `vectors` of a tile's rows, a constant where this is inlined. */
INLINE void attend_vectors(const int vectors, struct shape s, struct tile tile, struct piece p, struct scratch t)
{
    const long seen = tile.span.start + tile.begin / s.group + 1; /* keys up to the first row's own */
    const long last = tile.span.start + (tile.begin + tile.rows - 1) / s.group + 1;
    const long start = tile.window ? most(seen - tile.window - p.first, 0) / STEPS * STEPS : 0;
    const long stop = (least(last - p.first, p.count) + STEPS - 1) / STEPS * STEPS, number_of = tile.begin / ROWS;
    vector fading[VECTORS];
    if (start >= stop)
        return;
    score(vectors, s, t.query + number_of * s.key_size * ROWS, t.keys, start, stop, t.scores);
    if (s.softcap > 0)
        cap(t.scores + start * ROWS, (stop - start) * ROWS, s.softcap);
    if (least(seen - p.first, p.count) < stop || (tile.window && last - tile.window > p.first + start))
        hide(s, tile, p, start, stop, t.scores);
    weigh(vectors, t.scores, start, stop, t.value_scales, t.highest + tile.begin, t.total + tile.begin, fading);
    add_values(vectors, s, t.values + start * (s.value_size + GAP), t.scores + start * ROWS, stop - start, fading,
               t.sums + number_of * s.value_size * ROWS);
}

static void attend_tile(struct shape s, struct tile tile, struct piece p, struct scratch t)
{
    if (tile.rows > 2 * LANES)
        attend_vectors(VECTORS, s, tile, p, t);
    else if (tile.rows > LANES)
        attend_vectors(2, s, tile, p, t);
    else
        attend_vectors(1, s, tile, p, t);
}

/* Rows of one head become lanes of tiles. */
static void turn_queries(struct shape s, long rows, const number *query, const float *sinks, struct scratch t)
{
    const long tiles = (rows + ROWS - 1) / ROWS, heads = s.kv_heads * s.group;
    memset(t.query, 0, sizeof(float) * (size_t)(tiles * s.key_size * ROWS));
    memset(t.sums, 0, sizeof(float) * (size_t)(tiles * s.value_size * ROWS));
    for (long row = 0; row < tiles * ROWS; row++) {
        t.highest[row] = sinks ? sinks[row % s.group] : -INFINITY;
        t.total[row] = sinks ? 1 : 0;
    }
    for (long row = 0; row < rows; row++) {
        const number *from = query + (row / s.group * heads + row % s.group) * s.key_size;
        float *to = t.query + row / ROWS * s.key_size * ROWS + row % ROWS, lanes[LANES];
        for (long i = 0; i < s.key_size; i += LANES) {
            store(lanes, load_numbers(from + i));
            for (long lane = 0; lane < LANES; lane++)
                to[(i + lane) * ROWS] = lanes[lane];
        }
    }
}

static void turn_results(struct shape s, long rows, struct scratch t, number *out, float *lse)
{
    for (long row = 0; row < rows; row++) {
        const long at = row / s.group * s.kv_heads * s.group + row % s.group;
        const float *from = t.sums + row / ROWS * s.value_size * ROWS + row % ROWS;
        float total = t.total[row] == 0 ? 1 : t.total[row], lanes[LANES]; /* nothing is seen: -inf + log 1 */
        for (long i = 0; i < s.value_size; i += LANES) {
            for (long lane = 0; lane < LANES; lane++)
                lanes[lane] = from[(i + lane) * ROWS];
            store_numbers(out + at * s.value_size + i, multiplied(load(lanes), 1 / total));
        }
        if (lse)
            lse[at] = t.highest[row] + logf(total);
    }
}

static struct piece piece_of(struct span span, long first, long end)
{
    long behind = least((first / PIECE + 1) * PIECE, end);
    return (struct piece){span.blocks + first / BLOCK, first, behind - first};
}

/* One kv head of a span. */
static void attend_span(struct shape s, struct span span, long window, const struct kv *kv, long head,
                        const float *sinks, struct scratch t, const number *query, number *out, float *lse)
{
    const long rows = span.rows * s.group, end = least(span.start + span.rows, span.keys);
    long from = window ? most(span.start + 1 - window, 0) / BLOCK * BLOCK : 0;
    turn_queries(s, rows, query, sinks, t);
    for (struct piece p = piece_of(span, from, end); p.count > 0;) {
        struct piece next = piece_of(span, p.first + p.count, end);
        widen_piece(s, kv, head, p, t);
        for (long begin = 0; begin < rows; begin += ROWS) {
            ask_for_rows(s, kv, head, next, begin * PIECE / rows, (begin + ROWS) * PIECE / rows);
            attend_tile(s, (struct tile){span, begin, least(rows - begin, ROWS), window}, p, t);
        }
        p = next;
    }
    turn_results(s, rows, t, out, lse);
}

/* Memory of a thread for spans of so many rows. */
static float *scratch_for(struct shape s, long rows, int coded, struct scratch *t)
{
    const size_t all = (size_t)((rows * s.group + ROWS - 1) / ROWS * ROWS);
    const size_t keys = (size_t)s.key_size, values = (size_t)s.value_size, piece = PIECE + STEPS;
    const size_t floats = all * (keys + values + 2) + piece * (ROWS + keys + values + 2 * GAP + 2);
    float *memory = aligned_alloc(64, (sizeof(float) * floats + 63) / 64 * 64);
    t->scores = memory;
    t->query = t->scores + piece * ROWS;
    t->sums = t->query + all * keys;
    t->highest = t->sums + all * values;
    t->total = t->highest + all;
    t->keys = t->total + all;
    t->values = t->keys + piece * (keys + GAP);
    t->key_scales = coded ? t->values + piece * (values + GAP) : 0;
    t->value_scales = coded ? t->key_scales + piece : 0;
    return memory;
}

static long most_rows(const struct batch *batch)
{
    long rows = 0;
    for (long n = 0; n < batch->spans; n++)
        rows = most(rows, batch->rows[n]);
    return rows;
}

/* Attention [row][query head][value] of the spans of several rows; other rows are not written. `sinks` (one per query
 * head) may be null, and so may `lse` [row][query head], the logarithm of the sum of the exponentials of each row's
 * scores, sinks included, -inf where there are none. Returns 0, or 1 when there was no memory. */
int SPAN_ATTENTION(const struct shape *shape, const struct batch *batch, const number *query, const struct kv *kv,
                   const float *sinks, number *out, float *lse, int threads)
{
    struct shape s = *shape;
    const long rows = most_rows(batch);
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct scratch t;
        float *memory = scratch_for(s, rows, kv->key_scales != 0, &t);
        if (!memory)
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < batch->spans * s.kv_heads; unit++) {
            struct span span = span_of(batch, unit / s.kv_heads);
            long head = unit % s.kv_heads, query_head = (span.row * s.kv_heads + head) * s.group;
            if (memory && span.rows > 1)
                attend_span(s, span, batch->window, kv, head, sinks ? sinks + head * s.group : 0, t,
                            query + query_head * s.key_size, out + query_head * s.value_size, lse ? lse + query_head : 0);
        }
        free(memory);
    }
    return failed;
}
