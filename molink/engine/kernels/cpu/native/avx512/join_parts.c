/* `join_parts_f32` and `join_parts_bf16`, compiled for AVX512. */

#include "../join_parts.h"
