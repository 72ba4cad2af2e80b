/* `decode_attention_bf16` in the vectors of AVX2 and FMA, for CPUs without bfloat16 instructions. */

#include "vectors.h"

typedef uint16_t number;
#define DECODE_ATTENTION decode_attention_bf16

INLINE vector load_numbers(const number *from)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

/* To the nearest, of two as near to the even one. */
INLINE void store_numbers(number *to, vector values)
{
    __m256i bits = _mm256_castps_si256(values), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    _mm_storeu_si128((void *)to, _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}

#include "../decode_attention.h"
