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

/* sums [width] += what each row in turn adds to the gradient of the weight. */
INLINE void norm_weight_sums(const float *grad, const float *x, const float *inverse, long rows, long width,
                             double *sums) {
    for (long i = 0; i < rows; i++, grad += width, x += width)
        for (long d = 0; d < width; d++) sums[d] += (double)(grad[d] * (x[d] * inverse[i]));
}

/* The gradient of a row; d_x may be grad. */
INLINE void normalised_backward(const float *grad, const float *x, const float *weight, float inverse, long width,
                                float *d_x) {
    lanes dots = all(0.0f);
    for (long d = 0; d < width; d += LANES) {
        lanes slopes = get(grad + d, width - d) * (get(x + d, width - d) * all(inverse));
        dots = fused(slopes, get(weight + d, width - d), dots);
    }
    float along = sum(dots) / (float)width;
    for (long d = 0; d < width; d += LANES) {
        lanes inner = get(grad + d, width - d) * get(weight + d, width - d);
        inner = fused(get(x + d, width - d) * all(inverse), all(-along), inner) * all(inverse);
        put(d_x + d, inner, width - d);
    }
}

/* The same of rows; `above` is what reaches them besides, through the sum that was normalised, or NULL. */
INLINE void norm_rows_backward(const float *grad, const float *above, const float *x, const float *weight,
                               const float *inverse, long rows, long width, float *d_x) {
    for (long i = 0; i < rows; i++) {
        float *row = d_x + i * width;
        normalised_backward(grad + i * width, x + i * width, weight, inverse[i], width, row);
        for (long d = 0; above && d < width; d++) row[d] += above[i * width + d];
    }
}

#endif
