/* `linear_coded_f32` in the vectors of AVX512. */

#include "vectors.h"

#define ROWS_MAX 8

#include "../linear_coded_f32.h"
