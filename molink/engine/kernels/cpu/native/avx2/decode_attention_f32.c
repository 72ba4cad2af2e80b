/* `decode_attention_f32` in the vectors of AVX2 and FMA. */

#include "vectors.h"

typedef float number;
#define DECODE_ATTENTION decode_attention_f32
#define load_numbers load
#define store_numbers store

#include "../decode_attention.h"
