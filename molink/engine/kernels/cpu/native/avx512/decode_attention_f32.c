/* `decode_attention_f32` in the vectors of AVX512. */

#include "vectors.h"

#include "../decode_attention_f32.h"
