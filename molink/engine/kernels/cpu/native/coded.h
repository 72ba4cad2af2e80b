/* Weights in codes of 4, 5 or 8 bits, as both instruction sets read them: w = scale value(code) + zero, with a scale, and
 * where there are zeros a zero, for every row of W and group of inputs.
 *
 * W stands in panels of 32 of its rows ("columns" of the product). Within a panel each column has a 32-bit word for
 * eight inputs (four with 8 bits): the codes of even inputs in the low half, of odd ones in the high half, lowest
 * first, so that a word shifted right by one code shows the next pair. Behind a panel's words the panel's next inputs.
 * Codes of five bits stand as those of four, and after each 32 inputs a word of their fifth bits: even inputs' in the
 * low half, odd ones' in the high half.
 * Scales stand as [panel, group, 32], followed by the zeros of the same panel and group where there are any.
 */

#ifndef MOLINK_CODED_H
#define MOLINK_CODED_H

#include <stdint.h>

#define PANEL_COLUMNS 32
#define PANEL_BYTES (4 * PANEL_COLUMNS) /* one word of each column */
#define AHEAD_BYTES 8192                /* prefetched: a processor's own prefetching falls behind several rows of x */

enum kind { INT4, FP4, INT8, FP8, INT5 /* bfloat16 only, groups of 32 or a multiple */ };

struct coded {
    const uint8_t *codes;
    const void *scales; /* of the kernel's type */
    const void *values; /* of the kernel's type: what each code stands for; of whole numbers what code - 8 (or 16) is */
    long inputs;        /* a multiple of the group */
    long outputs;
    long group;         /* inputs per scale, a multiple of 16 */
    int kind;
    int has_zeros;
};

#endif
