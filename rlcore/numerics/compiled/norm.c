/* RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight of each row. */
#include "norm.h"

#include <stdlib.h>

#include "kernels.h"

/* y [rows, width]; inverse [rows] is what each row was multiplied with. Where there is something to be added to x,
 * their sum is written and normalised; else `added` and `total` are NULL.
 */
void rms_norm(const float *x, const float *added, const float *weight, float eps, long rows, long width, float *total,
              float *y, float *inverse) {
    for (long i = 0; i < rows; i++, x += width, y += width) {
        const float *row = x;
        if (added) {
            for (long d = 0; d < width; d += LANES)
                put(total + d, get(x + d, width - d) + get(added + d, width - d), width - d);
            row = total;
            added += width, total += width;
        }
        lanes by = all(inverse[i] = inverse_root(row, eps, width));
        for (long d = 0; d < width; d += LANES)
            put(y + d, get(row + d, width - d) * by * get(weight + d, width - d), width - d);
    }
}

/* d_x [rows, width], d_weight [width]: rows added one after another, in fp64. `above` is what reaches the rows besides,
 * through the sum that was normalised, or NULL. Returns 0, or 1 where memory is short.
 */
int rms_norm_backward(const float *grad, const float *above, const float *x, const float *weight, const float *inverse,
                      long rows, long width, float *d_x, float *d_weight) {
    double *sums = calloc(width, sizeof *sums);
    if (!sums) return 1;
    norm_weight_sums(grad, x, inverse, rows, width, sums);
    norm_rows_backward(grad, above, x, weight, inverse, rows, width, d_x);
    for (long d = 0; d < width; d++) d_weight[d] = (float)sums[d];
    free(sums);
    return 0;
}
