/* `span_attention_bf16` in the vectors of AVX2 and FMA, for CPUs without bfloat16 instructions. */

#include "bfloat16.h"

typedef bfloat16 number;
#define SPAN_ATTENTION span_attention_bf16
#define load_numbers widened
#define store_numbers store_rounded

#define VECTORS 3
#define STEPS 4 /* twelve sums, and sixteen registers */
#define PART 65536 /* channels that are added up apart: all, whose own rounding is coarser */

#include "../span_attention.h"
