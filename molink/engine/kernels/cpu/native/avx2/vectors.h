/* The vectors of AVX2 and FMA: what kernels in fp32 are made of that are the same in both sets. */

#ifndef MOLINK_AVX2_VECTORS_H
#define MOLINK_AVX2_VECTORS_H

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 8

typedef __m256 vector;
typedef __m256i words_vector;

INLINE vector zeros(void) { return _mm256_setzero_ps(); }
INLINE vector everywhere(float value) { return _mm256_set1_ps(value); }
INLINE vector load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void store(float *to, vector values) { _mm256_storeu_ps(to, values); }
INLINE vector added(vector a, vector b) { return _mm256_add_ps(a, b); }
INLINE vector multiplied(vector a, float factor) { return _mm256_mul_ps(a, _mm256_set1_ps(factor)); }
INLINE vector fused(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE words_vector load_words(const uint8_t *from) { return _mm256_loadu_si256((const void *)from); }
INLINE words_vector lowered(words_vector words, int bits) { return _mm256_srli_epi32(words, bits); }
INLINE words_vector lowered_signed(words_vector words, int bits) { return _mm256_srai_epi32(words, bits); }
INLINE words_vector raised(words_vector words, int bits) { return _mm256_slli_epi32(words, bits); }
INLINE words_vector masked(words_vector words, int mask) { return _mm256_and_si256(words, _mm256_set1_epi32(mask)); }
INLINE words_vector either(words_vector a, words_vector b) { return _mm256_or_si256(a, b); }
INLINE vector whole_numbers(words_vector words) { return _mm256_cvtepi32_ps(words); }
INLINE vector as_floats(words_vector words) { return _mm256_castsi256_ps(words); }
INLINE vector product(vector a, vector b) { return _mm256_mul_ps(a, b); }
INLINE vector quotient(vector a, vector b) { return _mm256_div_ps(a, b); }
INLINE vector difference(vector a, vector b) { return _mm256_sub_ps(a, b); }
INLINE vector larger(vector a, vector b) { return _mm256_max_ps(a, b); }
INLINE words_vector nearest(vector a) { return _mm256_cvtps_epi32(a); }
INLINE words_vector sum_of_words(words_vector a, int b) { return _mm256_add_epi32(a, _mm256_set1_epi32(b)); }

/* `values` where x is not 0, zeros elsewhere. */
INLINE vector where_not_zero(vector x, vector values)
{
    return _mm256_and_ps(values, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}

INLINE vector load_codes(const int8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from)));
}

INLINE float sum_of_lanes(vector a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* Entries of a table of sixteen: two registers of eight, between which bit 3 of the index, moved to the sign, chooses. */
INLINE vector of_sixteen(const float *table, words_vector index)
{
    vector low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    vector high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

#endif
