/* `linear_coded_f32` in the vectors of AVX2 and FMA. */

#include "vectors.h"

#define ROWS_MAX 6 /* sixteen registers */

#include "../linear_coded_f32.h"
