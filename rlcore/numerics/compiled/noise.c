/* The whole numbers behind the sampler's noise, mixed with splitmix64's finaliser (Steele, Lea and Flood 2014). */
#include <stdint.h>
#include <string.h>

/* y [rows, count] in (0, 1): the upper 52 bits n of each state + id, mixed, as (n + 1/2) / 2^52. */
void uniforms(const int64_t *states, const int64_t *ids, long rows, long count, double *y) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < count; j++) {
            uint64_t x = (uint64_t)states[i] + (uint64_t)ids[j];
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
            x = (x ^ x >> 27) * 0x94D049BB133111EBu;
            x = (x ^ x >> 31) >> 12 | (uint64_t)0x3FF << 52;
            double number;
            memcpy(&number, &x, sizeof number);
            y[i * count + j] = number - (1.0 - 0x1p-53);
        }
}
