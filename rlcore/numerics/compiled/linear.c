/* Linear layers and their gradients. */
#include "linear.h"

#include <stdlib.h>

#include "threads.h"

typedef struct {
    const float *grad, *x, *weight, *bias;
    long rows, inputs, outputs;
    float *y, *d_x, *d_weight, *packed;
} call;

static void forward(void *given, long part, long from, long end) {
    const call *of = given;
    linear_rows(of->x + from * of->inputs, of->weight, of->bias, end - from, of->inputs, of->outputs,
                of->y + from * of->outputs, of->packed + part * PACKED);
}

static void backward(void *given, long part, long from, long end) {
    const call *of = given;
    linear_rows_backward(of->grad + from * of->outputs, of->weight, end - from, of->inputs, of->outputs,
                         of->d_x + from * of->inputs, of->packed + part * PACKED);
}

static void weight_backward(void *given, long part, long from, long end) {
    const call *of = given;
    for (long i = 0; i < of->rows; i += BACKWARD_BLOCK) {
        long rows = least(of->rows - i, BACKWARD_BLOCK);
        weight_gradient(of->grad + i * of->outputs, of->x + i * of->inputs, rows, of->inputs, of->outputs, from, end,
                        i > 0, of->d_weight, of->packed + part * PACKED);
    }
}

static int begun(call *of, long *threads) {
    *threads = worth_while(*threads, 2.0 * of->rows * of->inputs * of->outputs);
    of->packed = room_for(*threads * PACKED);
    return of->packed != NULL;
}

/* y [rows, outputs] = x [rows, inputs] weight [outputs, inputs]^T + bias (or NULL). Returns 0, or 1 where memory is
 * short.
 */
int linear(const float *x, const float *weight, const float *bias, long rows, long inputs, long outputs, long threads,
           float *y) {
    call of = {.x = x, .weight = weight, .bias = bias, .rows = rows, .inputs = inputs, .outputs = outputs, .y = y};
    if (!begun(&of, &threads)) return 1;
    in_parts(forward, &of, rows, TILE_ROWS, threads);
    free(of.packed);
    return 0;
}

/* d_x as x, d_weight as weight, d_bias [outputs] (or NULL) from grad [rows, outputs]: rows added one after another, for
 * the bias in fp64. Returns 0, or 1 where memory is short.
 */
int linear_backward(const float *grad, const float *x, const float *weight, long rows, long inputs, long outputs,
                    long threads, float *d_x, float *d_weight, float *d_bias) {
    call of = {.grad = grad,
               .x = x,
               .weight = weight,
               .rows = rows,
               .inputs = inputs,
               .outputs = outputs,
               .d_x = d_x,
               .d_weight = d_weight};
    double *sums = calloc(outputs, sizeof *sums);
    if (!sums || !begun(&of, &threads)) {
        free(sums);
        return 1;
    }
    in_parts(backward, &of, rows, TILE_ROWS, threads);
    if (!rows) memset(d_weight, 0, 4 * inputs * outputs);
    in_parts(weight_backward, &of, outputs, TILE_ROWS, threads);
    if (d_bias) {
        add_rows(grad, rows, outputs, sums);
        for (long j = 0; j < outputs; j++) d_bias[j] = (float)sums[j];
    }
    free(sums), free(of.packed);
    return 0;
}
