/* RMSNorm of one row, for whoever has rows: whole ones, and heads. */
#ifndef RLCORE_NORM_H
#define RLCORE_NORM_H

#include "lanes.h"

/* 1 / sqrt(mean(x^2) + eps): lanes summed first, then over them. */
INLINE float inverse_root(const float *x, float eps, long width) {
    lanes squares = all(0.0f);
    for (long d = 0; d < width; d += LANES) {
        lanes part = get(x + d, width - d);
        squares = fused(part, part, squares);
    }
    return 1.0f / sqrtf(sum(squares) / (float)width + eps);
}

/* The gradient of a row, and what it adds to that of the weight; d_x may be grad. */
INLINE void normalised_backward(const float *grad, const float *x, const float *weight, float inverse, long width,
                                float *d_x, double *d_weight) {
    lanes dots = all(0.0f);
    for (long d = 0; d < width; d += LANES) {
        lanes slopes = get(grad + d, width - d) * (get(x + d, width - d) * all(inverse));
        dots = fused(slopes, get(weight + d, width - d), dots);
    }
    for (long d = 0; d < width; d++) d_weight[d] += (double)(grad[d] * (x[d] * inverse));
    float along = sum(dots) / (float)width;
    for (long d = 0; d < width; d += LANES) {
        lanes inner = get(grad + d, width - d) * get(weight + d, width - d);
        inner = fused(get(x + d, width - d) * all(inverse), all(-along), inner) * all(inverse);
        put(d_x + d, inner, width - d);
    }
}

#endif
