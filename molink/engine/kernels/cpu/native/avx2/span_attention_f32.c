/* `span_attention_f32` in the vectors of AVX2 and FMA. */

#include "vectors.h"

typedef float number;
#define SPAN_ATTENTION span_attention_f32
#define load_numbers load
#define store_numbers store

#define VECTORS 3
#define STEPS 4 /* twelve sums, and sixteen registers */
#define PART 16 /* channels that are added up apart */

#include "../span_attention.h"
