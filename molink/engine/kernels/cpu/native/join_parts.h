/* Join of attention that was computed in parts over different keys (native_join.py).
 *
 * Each part of a row and head is normalised and has the logarithm of the sum of its exponentials: the softmax of these
 * weighs the parts. Sums are made in fp32, in the order in which parts are given, and rounded once. Plain C: compilers
 * make vectors of it, and there is little to compute.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

struct joining {
    long parts, rows, heads, size;
    const float *const *log_sums; /* [parts] of [row][head]; -INFINITY where a row sees none of a part's keys */
    const float *sinks;           /* [head], one more score each, without a value; may be null */
};

static inline float of_bf16(uint16_t number)
{
    uint32_t bits = (uint32_t)number << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The nearest, of two as near the even one. */
static inline uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float of_f32(float number) { return number; }
static inline float to_f32(float value) { return value; }

/* What the exponentials of a row and head add up to, under `*highest`; what sees nothing has no highest score. */
static float total_of(const struct joining *j, long at, float *highest)
{
    float sink = j->sinks ? j->sinks[at % j->heads] : -INFINITY, high = sink, total;
    for (long part = 0; part < j->parts; part++)
        high = j->log_sums[part][at] > high ? j->log_sums[part][at] : high;
    *highest = high = high == -INFINITY ? 0 : high;
    total = expf(sink - high);
    for (long part = 0; part < j->parts; part++)
        total += expf(j->log_sums[part][at] - high);
    return total == 0 ? 1 : total;
}

#define JOIN_PARTS(name, number, widened, rounded)                                                                     \
    void name(const struct joining *j, const number *const *parts, number *out)                                        \
    {                                                                                                                  \
        float sums[j->size];                                                                                           \
        for (long at = 0; at < j->rows * j->heads; at++, out += j->size) {                                             \
            float highest, total = total_of(j, at, &highest);                                                          \
            memset(sums, 0, sizeof sums);                                                                              \
            for (long part = 0; part < j->parts; part++) {                                                             \
                const number *some = parts[part] + at * j->size;                                                       \
                const float share = expf(j->log_sums[part][at] - highest) / total;                                     \
                for (long i = 0; i < j->size; i++)                                                                     \
                    sums[i] += share * widened(some[i]);                                                               \
            }                                                                                                          \
            for (long i = 0; i < j->size; i++)                                                                         \
                out[i] = rounded(sums[i]);                                                                             \
        }                                                                                                              \
    }

/* Joined rows [row][head][size]. */
JOIN_PARTS(join_parts_f32, float, of_f32, to_f32)
JOIN_PARTS(join_parts_bf16, uint16_t, of_bf16, to_bf16)
