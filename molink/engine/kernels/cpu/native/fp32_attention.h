/* What attention kernels that compute in fp32 have in common, whatever their vectors. */

#ifndef MOLINK_FP32_ATTENTION_H
#define MOLINK_FP32_ATTENTION_H

#include "attention_call.h"

INLINE vector exponential(vector x) /* for x <= 0, to about 1e-7: 2^n by exponent, the rest by its series */
{
    x = larger(everywhere(-87.0f), x); /* in this order what is no number stays none */
    words_vector power = nearest(multiplied(x, 1.44269504f));
    vector n = whole_numbers(power), p = everywhere(1.0f / 720);
    vector r = fused(n, everywhere(2.12194440e-4f), fused(n, everywhere(-0.693359375f), x));
    p = fused(p, r, everywhere(1.0f / 120));
    p = fused(p, r, everywhere(1.0f / 24));
    p = fused(p, r, everywhere(1.0f / 6));
    p = fused(p, r, everywhere(0.5f));
    p = fused(p, r, everywhere(1.0f));
    p = fused(p, r, everywhere(1.0f));
    return fused(p, as_floats(raised(sum_of_words(power, 127), 23)), zeros());
}

/* What is read a block later: the processor's own prefetching ends with a page. */
INLINE void ask_for(const void *row, long bytes)
{
    for (long i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)row + i, _MM_HINT_T0);
}

#endif
