/* `decode_attention_f32` in the vectors of AVX2 and FMA. */

#include "vectors.h"

#include "../decode_attention_f32.h"
