/* The vectors of AVX512: what kernels in fp32 are made of that are the same in both sets. */

#ifndef MOLINK_AVX512_VECTORS_H
#define MOLINK_AVX512_VECTORS_H

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef __m512 vector;
typedef __m512i words_vector;

INLINE vector zeros(void) { return _mm512_setzero_ps(); }
INLINE vector everywhere(float value) { return _mm512_set1_ps(value); }
INLINE vector load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void store(float *to, vector values) { _mm512_storeu_ps(to, values); }
INLINE vector added(vector a, vector b) { return _mm512_add_ps(a, b); }
INLINE vector multiplied(vector a, float factor) { return _mm512_mul_ps(a, _mm512_set1_ps(factor)); }
INLINE vector fused(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }
INLINE words_vector load_words(const uint8_t *from) { return _mm512_loadu_si512(from); }
INLINE words_vector lowered(words_vector words, unsigned bits) { return _mm512_srli_epi32(words, bits); }
INLINE words_vector lowered_signed(words_vector words, unsigned bits) { return _mm512_srai_epi32(words, bits); }
INLINE words_vector raised(words_vector words, unsigned bits) { return _mm512_slli_epi32(words, bits); }
INLINE words_vector masked(words_vector words, int mask) { return _mm512_and_si512(words, _mm512_set1_epi32(mask)); }
INLINE words_vector either(words_vector a, words_vector b) { return _mm512_or_si512(a, b); }
INLINE vector whole_numbers(words_vector words) { return _mm512_cvtepi32_ps(words); }
INLINE vector as_floats(words_vector words) { return _mm512_castsi512_ps(words); }
INLINE vector larger(vector a, vector b) { return _mm512_max_ps(a, b); }
INLINE words_vector nearest(vector a) { return _mm512_cvtps_epi32(a); }
INLINE words_vector sum_of_words(words_vector a, int b) { return _mm512_add_epi32(a, _mm512_set1_epi32(b)); }
INLINE float sum_of_lanes(vector a) { return _mm512_reduce_add_ps(a); }

/* Entries of a table of sixteen; higher bits of the index do not matter. */
INLINE vector of_sixteen(const float *table, words_vector index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

#endif
