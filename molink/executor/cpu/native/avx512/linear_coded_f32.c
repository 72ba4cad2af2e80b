/* The vectors of AVX512, and `linear_coded_f32` in them. */

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define ROWS_MAX 8

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

/* Entries of a table of sixteen; higher bits of the index do not matter. */
INLINE vector of_sixteen(const float *table, words_vector index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

#include "../linear_coded_f32.h"
