/* A linear layer, x weight^T + bias, for whoever has rows: x [rows, inputs], weight [outputs, inputs]. */
#ifndef RLCORE_LINEAR_H
#define RLCORE_LINEAR_H

#include "product.h"

/* Rows that are done together, whole tiles of them, so that what is made of them stays in the cache; their gradient makes
 * twice as much.
 */
#define BLOCK 192
#define BACKWARD_BLOCK 96

/* y [rows, outputs]; `packed` [PACKED]. */
INLINE void linear_rows(const float *x, const float *weight, const float *bias, long rows, long inputs, long outputs,
                        float *y, float *packed) {
    multiply((matrix){x, inputs, 1}, (matrix){weight, 1, inputs}, rows, inputs, outputs, 0, y, packed);
    for (long i = 0; bias && i < rows; i++)
        for (long j = 0; j < outputs; j++) y[i * outputs + j] += bias[j];
}

/* d_x [rows, inputs] from grad [rows, outputs]. */
INLINE void linear_rows_backward(const float *grad, const float *weight, long rows, long inputs, long outputs,
                                 float *d_x, float *packed) {
    multiply((matrix){grad, outputs, 1}, (matrix){weight, inputs, 1}, rows, outputs, inputs, 0, d_x, packed);
}

/* Rows `from` to `end` of d_weight [outputs, inputs]: the products of these rows and, where it `adds`, what is there. */
INLINE void weight_gradient(const float *grad, const float *x, long rows, long inputs, long outputs, long from,
                            long end, int adds, float *d_weight, float *packed) {
    multiply((matrix){grad + from, 1, outputs}, (matrix){x, inputs, 1}, end - from, rows, inputs, adds,
             d_weight + from * inputs, packed);
}

/* sums [width] += each row of grad in turn. */
INLINE void add_rows(const float *grad, long rows, long width, double *sums) {
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < width; d++) sums[d] += (double)grad[i * width + d];
}

#endif
