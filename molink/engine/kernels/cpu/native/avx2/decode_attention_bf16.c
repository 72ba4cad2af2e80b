/* `decode_attention_bf16` in the vectors of AVX2 and FMA, for CPUs without bfloat16 instructions. */

#include "bfloat16.h"

typedef bfloat16 number;
#define DECODE_ATTENTION decode_attention_bf16
#define load_numbers widened
#define store_numbers store_rounded

#include "../decode_attention.h"
