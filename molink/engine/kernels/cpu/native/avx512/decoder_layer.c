/* A whole plain decoder layer in one call, for bfloat16 rows: norm, queries, keys and values, rotation, what the pool
 * keeps, attention, its projection, norm, gated MLP, both residual sums. Weights are bfloat16 or codes of few bits.
 *
 * Between the products there are nine small operations, each a dispatch of tens of microseconds where a framework does
 * it and a microsecond here. They compute in fp32 and round once to bfloat16 where the framework's own rounds after
 * each step. Nothing but the products and attention looks at more than one row.
 */

#include "attention.h"

struct linear {
    const struct coded *coded; /* or null, and then: */
    const bfloat16 *weights;
    const float *bias; /* padded to a whole panel, or null */
    long inputs, outputs;
};

struct norm {
    const float *weight; /* null: there is none */
    float epsilon;
};

enum activation { SILU, GELU_TANH };

/* engine/model/plain_layer.py has the same. Rows of q, k, v are [group x kv_heads | kv_heads | kv_heads] heads. */
struct layer {
    struct linear qkv, attended, gate_up, down;
    struct norm before_attention, of_query, of_key, before_mlp;
    struct shape shape;
    const float *sinks;
    long rotated; /* first channels of a head that positions rotate, channel i with i + rotated / 2 */
    long activation;
};

/* The rows of a step. */
struct step {
    const bfloat16 *x, *cosines, *sines; /* [rows][hidden], [rows][rotated] */
    const int64_t *slots;                /* where each row's key and value are kept */
    long rows;
    bfloat16 *scratch; /* [rows][decoder_layer_scratch] */
};

static inline __m512 loaded(const bfloat16 *x)
{
    return widened(_mm256_loadu_si256((const void *)x));
}

static inline void store(bfloat16 *out, __m512 x)
{
    _mm256_storeu_si256((void *)out, (__m256i)_mm512_cvtneps_pbh(x));
}

static void normalise(const bfloat16 *x, long size, struct norm norm, bfloat16 *out)
{
    __m512 sum = _mm512_setzero_ps();
    for (long i = 0; i < size; i += 16)
        sum = _mm512_fmadd_ps(loaded(x + i), loaded(x + i), sum);
    __m512 scale = _mm512_set1_ps(1 / sqrtf(_mm512_reduce_add_ps(sum) / (float)size + norm.epsilon));
    for (long i = 0; i < size; i += 16)
        store(out + i, _mm512_mul_ps(_mm512_mul_ps(loaded(x + i), scale), _mm512_loadu_ps(norm.weight + i)));
}

static void add(const bfloat16 *x, const bfloat16 *y, long count, bfloat16 *out)
{
    for (long i = 0; i < count; i += 16)
        store(out + i, _mm512_add_ps(loaded(x + i), loaded(y + i)));
}

/* x times the logistic function of `by`. */
static inline __m512 gated(__m512 x, __m512 by)
{
    __m512 one = _mm512_set1_ps(1), small = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(by)));
    __mmask16 below = _mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 share = _mm512_div_ps(_mm512_mask_mov_ps(one, below, small), _mm512_add_ps(one, small));
    return _mm512_mul_ps(x, share);
}

static inline __m512 activated(__m512 x, long activation)
{
    if (activation == SILU)
        return gated(x, x);
    __m512 cubed = _mm512_mul_ps(_mm512_mul_ps(x, x), x); /* 0.5 (1 + tanh u) is the logistic function of 2 u */
    __m512 inner = _mm512_fmadd_ps(cubed, _mm512_set1_ps(0.044715f), x);
    return gated(x, _mm512_mul_ps(inner, _mm512_set1_ps(1.5957691216f)));
}

static void gate(const bfloat16 *gate_up, long size, long activation, bfloat16 *out)
{
    for (long i = 0; i < size; i += 16)
        store(out + i, _mm512_mul_ps(activated(loaded(gate_up + i), activation), loaded(gate_up + size + i)));
}

/* One head's query or key, normalised and rotated. `out` may be `x`. */
static void place(const bfloat16 *x, long size, struct norm norm, const bfloat16 *cosines, const bfloat16 *sines,
                  long rotated, bfloat16 *out)
{
    long half = rotated / 2;
    if (norm.weight) {
        normalise(x, size, norm, out);
        x = out;
    }
    for (long i = 0; i < half; i += 16) {
        __m512 low = loaded(x + i), high = loaded(x + half + i);
        __m512 turned = _mm512_mul_ps(high, loaded(sines + i));
        store(out + i, _mm512_fmsub_ps(low, loaded(cosines + i), turned));
        turned = _mm512_mul_ps(low, loaded(sines + half + i));
        store(out + half + i, _mm512_fmadd_ps(high, loaded(cosines + half + i), turned));
    }
    if (x != out)
        memcpy(out + rotated, x + rotated, (size_t)(size - rotated) * sizeof *x);
}

/* Int8 codes of one head's key or value; returns their scale (engine/memory/kv_rows.py). */
static bfloat16 encode(const bfloat16 *x, long size, int8_t *codes)
{
    __m512 largest = _mm512_setzero_ps();
    for (long i = 0; i < size; i += 16)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(loaded(x + i)));
    __m512 wanted = _mm512_set1_ps(fmaxf(_mm512_reduce_max_ps(largest) / 127, 1.17549435e-38f));
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(wanted);
    __m512 scale = widened(rounded), limit = _mm512_set1_ps(127);
    for (long i = 0; i < size; i += 16) {
        __m512 code = _mm512_roundscale_ps(_mm512_div_ps(loaded(x + i), scale), 0);
        code = _mm512_max_ps(_mm512_min_ps(code, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
        _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(code)));
    }
    return (bfloat16)_mm256_extract_epi16(rounded, 0);
}

static void keep(const bfloat16 *x, long size, void *rows, long at, bfloat16 *scales, long scale_at)
{
    if (scales)
        scales[scale_at] = encode(x, size, (int8_t *)rows + at);
    else
        memcpy((bfloat16 *)rows + at, x, (size_t)size * sizeof *x);
}

/* Take a row's product apart: queries to `query`, keys and values to their slot. Keys are placed where they stand. */
static void take_apart(const struct layer *layer, const struct step *step, const struct kv *kv, long row,
                       bfloat16 *product, bfloat16 *query)
{
    struct shape s = layer->shape;
    long heads = s.kv_heads * s.group, slot = step->slots[row];
    const bfloat16 *cosines = step->cosines + row * layer->rotated, *sines = step->sines + row * layer->rotated;
    bfloat16 *key = product + heads * s.key_size, *value = key + s.kv_heads * s.key_size;
    for (long head = 0; head < heads; head++)
        place(product + head * s.key_size, s.key_size, layer->of_query, cosines, sines, layer->rotated,
              query + head * s.key_size);
    for (long head = 0; head < s.kv_heads; head++, key += s.key_size, value += s.value_size) {
        long scale_at = slot * s.kv_heads + head;
        place(key, s.key_size, layer->of_key, cosines, sines, layer->rotated, key);
        keep(key, s.key_size, (void *)kv->keys, slot * s.key_token + head * s.key_head, (bfloat16 *)kv->key_scales,
             scale_at);
        keep(value, s.value_size, (void *)kv->values, slot * s.value_token + head * s.value_head,
             (bfloat16 *)kv->value_scales, scale_at);
    }
}

static int multiply(const bfloat16 *x, long rows, struct linear by, bfloat16 *y, int threads)
{
    if (by.coded)
        return linear_coded_bf16(x, rows, by.coded, by.bias, y, threads);
    linear_bf16(x, rows, by.inputs, by.weights, by.bias, y, by.outputs, threads);
    return 0;
}

static int attend(const struct layer *layer, const struct batch *batch, const struct kv *kv, const bfloat16 *query,
                  bfloat16 *out, int threads)
{
    int has_decodes = 0, has_pieces = 0;
    for (long n = 0; n < batch->spans; n++)
        *(batch->rows[n] == 1 ? &has_decodes : &has_pieces) = 1;
    return (has_decodes && decode_attention(&layer->shape, batch, query, kv, layer->sinks, out, 0, threads)) ||
           (has_pieces && span_attention(&layer->shape, batch, query, kv, layer->sinks, out, 0, threads));
}

static inline long larger(long a, long b)
{
    return a > b ? a : b;
}

/* Numbers of a row in each of the two narrow buffers, and in the wide one. */
static long narrow(const struct layer *layer)
{
    long query = layer->shape.kv_heads * layer->shape.group * layer->shape.key_size;
    return larger(larger(layer->qkv.inputs, layer->attended.inputs), larger(layer->down.inputs, query));
}

long decoder_layer_scratch(const struct layer *layer)
{
    return 2 * narrow(layer) + larger(layer->qkv.outputs, layer->gate_up.outputs);
}

#define EACH_ROW                                                                                                       \
    _Pragma("omp parallel for num_threads(threads) if (threads > 1 && step->rows > 8)")                                \
    for (long row = 0; row < step->rows; row++)

static int attention_part(const struct layer *layer, const struct step *step, const struct batch *batch,
                          const struct kv *kv, bfloat16 *first, bfloat16 *second, bfloat16 *wide, int threads)
{
    const long hidden = layer->qkv.inputs, rows = step->rows;
    const long query = layer->shape.kv_heads * layer->shape.group * layer->shape.key_size;
    EACH_ROW
    normalise(step->x + row * hidden, hidden, layer->before_attention, first + row * hidden);
    int failed = multiply(first, rows, layer->qkv, wide, threads);
    EACH_ROW
    take_apart(layer, step, kv, row, wide + row * layer->qkv.outputs, first + row * query);
    failed |= attend(layer, batch, kv, first, second, threads);
    return failed | multiply(second, rows, layer->attended, first, threads);
}

/* The layer's rows [rows][hidden], to `out`. Returns 0, or 1 when there was no memory. */
int decoder_layer(const struct layer *layer, const struct step *step, const struct batch *batch, const struct kv *kv,
                  bfloat16 *out, int threads)
{
    const long hidden = layer->qkv.inputs, inner = layer->down.inputs, rows = step->rows;
    bfloat16 *first = step->scratch, *second = first + rows * narrow(layer), *wide = second + rows * narrow(layer);
    int failed = attention_part(layer, step, batch, kv, first, second, wide, threads);
    EACH_ROW
    {
        add(step->x + row * hidden, first + row * hidden, hidden, out + row * hidden);
        normalise(out + row * hidden, hidden, layer->before_mlp, second + row * hidden);
    }
    failed |= multiply(second, rows, layer->gate_up, wide, threads);
    EACH_ROW
    gate(wide + row * 2 * inner, inner, layer->activation, first + row * inner);
    failed |= multiply(first, rows, layer->down, second, threads);
    EACH_ROW
    add(out + row * hidden, second + row * hidden, hidden, out + row * hidden);
    return failed;
}
