/* RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight of each row. */
#include "norm.h"

#include <stdlib.h>

/* y [rows, width]; inverse [rows] is what each row was multiplied with, or NULL. */
void rms_norm(const float *x, const float *weight, float eps, long rows, long width, float *y, float *inverse) {
    for (long i = 0; i < rows; i++) {
        float by = inverse_root(x + i * width, eps, width);
        for (long d = 0; d < width; d += LANES)
            put(y + i * width + d, get(x + i * width + d, width - d) * all(by) * get(weight + d, width - d), width - d);
        if (inverse) inverse[i] = by;
    }
}

/* d_x [rows, width], d_weight [width]: rows added one after another, in fp64. Returns 0, or 1 where memory is short. */
int rms_norm_backward(const float *grad, const float *x, const float *weight, const float *inverse, long rows,
                      long width, float *d_x, float *d_weight) {
    double *sums = calloc(width, sizeof *sums);
    if (!sums) return 1;
    for (long i = 0; i < rows; i++)
        normalised_backward(grad + i * width, x + i * width, weight, inverse[i], width, d_x + i * width, sums);
    for (long d = 0; d < width; d++) d_weight[d] = (float)sums[d];
    free(sums);
    return 0;
}
