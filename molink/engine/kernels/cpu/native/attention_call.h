/* What a call of the attention kernels is given (native_attention.py has the same). */

#ifndef MOLINK_ATTENTION_CALL_H
#define MOLINK_ATTENTION_CALL_H

#include <stdint.h>

struct shape {
    long kv_heads, group, key_size, value_size; /* in fp32 multiples of 16, else key_size of 32 */
    long key_token, key_head;     /* numbers to the next slot's key, and to the next kv head's... */
    long value_token, value_head; /* ...and so for values: heads may share rows, values may be parts of keys */
    float scale, softcap;         /* softcap 0: none */
};

#define BLOCK 16 /* slots of a KV block */

/* Spans of rows, each over the keys of its block table (engine/memory/ragged_batch.py). */
struct batch {
    const int32_t *row, *rows, *start, *keys; /* first row, rows, position of the first row, keys: [spans] */
    const int32_t *blocks;                    /* [spans][width] */
    long spans, width;
    long window; /* keys that a row sees, itself included; 0: all before it */
};

struct span {
    long row, rows, start, keys;
    const int32_t *blocks;
};

static inline struct span span_of(const struct batch *batch, long n)
{
    return (struct span){batch->row[n], batch->rows[n], batch->start[n], batch->keys[n],
                         batch->blocks + n * batch->width};
}

/* What is read of one layer, by slot and kv head: numbers, or int8 codes with a bfloat16 scale for each of them. */
struct kv {
    const void *keys, *values;
    const uint16_t *key_scales, *value_scales; /* null: not in int8 */
};

#endif
