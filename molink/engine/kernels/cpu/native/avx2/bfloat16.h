/* Numbers in bfloat16 for the vectors of AVX2: the upper halves of fp32. */

#ifndef MOLINK_AVX2_BFLOAT16_H
#define MOLINK_AVX2_BFLOAT16_H

#include "vectors.h"

typedef uint16_t bfloat16;

INLINE vector widened(const bfloat16 *from)
{
    return as_floats(raised(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16));
}

/* To the nearest, of two as near to the even one; what is no number stays none. */
INLINE __m128i rounded(vector values)
{
    __m256i bits = _mm256_castps_si256(values), odd = masked(lowered(bits, 16), 1);
    __m256i nearest = lowered(_mm256_add_epi32(bits, sum_of_words(odd, 0x7fff)), 16);
    __m256i none = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    nearest = _mm256_blendv_epi8(nearest, _mm256_set1_epi32(0x7fc0), none);
    return _mm_packus_epi32(_mm256_castsi256_si128(nearest), _mm256_extracti128_si256(nearest, 1));
}

INLINE void store_rounded(bfloat16 *to, vector values)
{
    _mm_storeu_si128((void *)to, rounded(values));
}

#endif
