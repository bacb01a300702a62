/* Sixteen numbers side by side, and what is done with them.
 *
 * Only what IEEE 754 rounds one way is used: + - * / sqrt, and fma where it is written. With contraction off, a
 * function here has the same bits on every processor and from every compiler, however wide its registers are.
 */
#ifndef RLCORE_LANES_H
#define RLCORE_LANES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#define LANES 16
/* A loop whose count is known when this is compiled, so that what it goes over may stay in registers. */
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef float four __attribute__((vector_size(LANES), aligned(4), may_alias));
typedef int whole_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* The next multiple of LANES. */
INLINE long rounded_up(long count) { return (count + LANES - 1) / LANES * LANES; }

/* Memory for so many numbers, sixteen of which never lie in two lines of a cache if they begin at a multiple of them:
 * half the time of a product. NULL where it is short.
 */
INLINE float *room_for(long count) { return aligned_alloc(4 * LANES, 4 * rounded_up(count + 1)); }

/* Parts of these sizes one after another from `at` on, each at a multiple of LANES, or nowhere (NULL). -> how many
 * numbers they take together.
 */
INLINE long lay_out(float *at, int count, float **const *parts, const long *sizes) {
    long used = 0;
    for (int i = 0; i < count; used += rounded_up(sizes[i++])) *parts[i] = at ? at + used : NULL;
    return used;
}

/* x in every lane: less zero, which changes no number. */
INLINE lanes all(float x) { return x - (lanes){0}; }

/* Up to LANES numbers, zeros behind them. */
INLINE lanes get(const float *from, long count) {
    if (count >= LANES) return *(const lanes *)from;
    lanes x = all(0.0f);
    memcpy(&x, from, 4 * count);
    return x;
}

INLINE void put(float *to, lanes x, long count) {
    if (count >= LANES)
        *(lanes *)to = x;
    else
        memcpy(to, &x, 4 * count);
}

/* a * b + c, rounded once. fmaf says it too, but not every compiler then keeps sixteen of them together. */
INLINE lanes fused(lanes a, lanes b, lanes c) {
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union {
        lanes whole;
        __m256 half[2];
    } x = {a}, y = {b}, z = {c};
    for (int h = 0; h < 2; h++) z.half[h] = _mm256_fmadd_ps(x.half[h], y.half[h], z.half[h]);
    return z.whole;
#else
    for (int l = 0; l < LANES; l++) c[l] = fmaf(a[l], b[l], c[l]);
    return c;
#endif
}

/* a where the mask has all bits set, b where it has none. */
INLINE lanes chosen(whole_lanes mask, lanes a, lanes b) {
    return (lanes)((mask & (whole_lanes)a) | (~mask & (whole_lanes)b));
}

INLINE lanes larger(lanes a, lanes b) { return chosen(b > a, b, a); }

INLINE lanes smaller(lanes a, lanes b) { return chosen(b < a, b, a); }

/* x in the first `count` lanes, `other` in those behind. */
INLINE lanes first(long count, lanes x, float other) {
    const whole_lanes numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int end = count < LANES ? (int)count : LANES;
    return chosen(numbers < end, x, all(other));
}

/* Sixteen numbers of a and b together, by their places: b's are from 16 on. */
#if defined(__clang__)
#define PICKED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICKED(a, b, ...) __builtin_shuffle(a, b, (whole_lanes){__VA_ARGS__})
#endif

/* The halves of x in each other's place. */
INLINE lanes swapped(lanes x) { return PICKED(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7); }

/* Lanes at distance 8, then 4, 2 and 1: one order. */
INLINE float sum(lanes x) {
    eight a = ((eight *)&x)[0] + ((eight *)&x)[1];
    four b = ((four *)&a)[0] + ((four *)&a)[1];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

INLINE float largest(lanes x) {
    x = larger(x, swapped(x));
    x = larger(x, PICKED(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    x = larger(x, PICKED(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return x[0] > x[1] ? x[0] : x[1];
}

/* e^x within 2 units in the last place, x from -87 to 88; what is beyond is taken as if it were there. NaN is NaN.
 *
 * 2^n e^r with |r| <= ln(2) / 2, r without rounding by a ln(2) in two parts, e^r by a polynomial
 * (Cephes, Moshier 1989).
 */
INLINE lanes exponential(lanes x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: a number added to it is rounded to a whole one */
    x = smaller(larger(x, all(-87.0f)), all(88.0f));
    lanes shifted = fused(x, all(1.44269504f), all(magic));
    lanes n = shifted - all(magic);
    lanes r = fused(n, all(-0.693359375f), x);
    r = fused(n, all(2.12194440e-4f), r);
    lanes y = all(1.9875691500e-4f);
    y = fused(y, r, all(1.3981999507e-3f));
    y = fused(y, r, all(8.3334519073e-3f));
    y = fused(y, r, all(4.1665795894e-2f));
    y = fused(y, r, all(1.6666665459e-1f));
    y = fused(y, r, all(5.0000001201e-1f));
    y = fused(y, r * r, r) + all(1.0f);
    whole_lanes exponent = ((whole_lanes)shifted - (whole_lanes)all(magic) + 127) << 23;
    return y * (lanes)exponent;
}

#endif
