/* Attention of single query rows (decoding) over bfloat16 keys and values in the paged pool.
 *
 * One unit of work is one row and one kv head: all query heads of the group score a key while it is in registers
 * (VDPBF16PS, fp32 sums), the softmax is exact and in fp32, and the values are summed with fp32 weights. Softcap and
 * sinks cost nothing here, a window is just a later first key. No copy, no mask, no padding between sequences.
 */

#include <stdlib.h>

#include "attention.h"

/* Which keys a row reads: slots [first, first + count) of the pool. */
struct range {
    int64_t row, first, count;
};

static void score(struct shape s, const bfloat16 *query, const bfloat16 *key, long count, float *scores)
{
    for (long n = 0; n < count; n++, key += s.kv_heads * s.key_size)
        for (long g = 0; g < s.group; g++) {
            __m512 sum = _mm512_setzero_ps();
            for (long i = 0; i < s.key_size; i += 32)
                sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(query + g * s.key_size + i),
                                       (__m512bh)_mm512_loadu_si512(key + i));
            scores[g * count + n] = _mm512_reduce_add_ps(sum) * s.scale;
        }
    cap(scores, s.group * count, s.softcap);
}

/* Sixteen channels of the weighted sum, for one head. */
static __m256i weigh(const float *weights, const bfloat16 *value, long count, long stride)
{
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    long n = 0;
    for (; n + 1 < count; n += 2, value += 2 * stride) {
        __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)value));
        __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(value + stride)));
        even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(first, 16)), _mm512_set1_ps(weights[n]), even);
        odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(second, 16)), _mm512_set1_ps(weights[n + 1]), odd);
    }
    if (n < count) {
        __m512i last = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)value));
        even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(last, 16)), _mm512_set1_ps(weights[n]), even);
    }
    return (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(even, odd));
}

static void attend(struct shape s, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                   long count, const float *sinks, bfloat16 *out, float *scores)
{
    score(s, query, key, count, scores);
    for (long g = 0; g < s.group; g++) {
        softmax(scores + g * count, count, sinks ? sinks[g] : -INFINITY);
        for (long i = 0; i < s.value_size; i += 16) {
            __m256i channels = weigh(scores + g * count, value + i, count, s.kv_heads * s.value_size);
            _mm256_storeu_si256((void *)(out + g * s.value_size + i), channels);
        }
    }
}

/* Returns 0, or 1 when there was no memory for the scores. `sinks` (one per query head) may be null. */
int decode_attention_bf16(const struct shape *shape, const bfloat16 *query, const bfloat16 *keys, const bfloat16 *values,
                          const float *sinks, const struct range *ranges, long rows, bfloat16 *out, int threads)
{
    struct shape s = *shape;
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long unit = 0; unit < rows * s.kv_heads; unit++) {
        struct range r = ranges[unit / s.kv_heads];
        long head = unit % s.kv_heads, query_head = r.row * s.kv_heads * s.group + head * s.group;
        float *scores = malloc((size_t)(s.group * r.count) * sizeof(float));
        if (!scores) {
            failed = 1;
            continue;
        }
        attend(s, query + query_head * s.key_size, keys + (r.first * s.kv_heads + head) * s.key_size,
               values + (r.first * s.kv_heads + head) * s.value_size, r.count, sinks ? sinks + head * s.group : 0,
               out + query_head * s.value_size, scores);
        free(scores);
    }
    return failed;
}
