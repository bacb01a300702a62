/* The gradient of a layer in one call, some blocks of rows at a time. */
#include <stdlib.h>

#include "kernels.h"
#include "layer.h"
#include "linear.h"
#include "norm.h"
#include "threads.h"

/* The gradients of the weights, as the layer has them. */
typedef struct {
    float *attention_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *mlp_norm, *gate_up, *down;
} gradients;

typedef struct {
    const layer *of;
    const float *grad, *x;
    kept in;
    gradients to;
    float *d_x;
    float *d_heads, *d_mixed, *d_attended;                  /* of all rows */
    float *normed, *d_normed, *hidden, *d_hidden, *d_gates; /* of the rows that are done together */
    double *norm_sums, *norm_2_sums, *bias_sums;
    float *packed;    /* [threads, PACKED] */
    long first, rows; /* that are done together */
} call;

/* x normalised once more. */
static void normalise(const float *x, const float *inverse, const float *weight, long rows, long width, float *y) {
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < width; d += LANES) {
            lanes row = get(x + i * width + d, width - d) * all(inverse[i]);
            put(y + i * width + d, row * get(weight + d, width - d), width - d);
        }
}

/* Rows `from` to `end` of those at hand: from the gradient of y to those of what attention gave and of the stream. */
static void after_attention(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    long width = of->width, ffn_width = of->ffn_width, rows = end - from, i = at->first + from;
    const float *grad = at->grad + i * width, *gates = at->in.gates + i * 2 * ffn_width,
                *attended = at->in.attended + i * width;
    float *normed = at->normed + from * width, *d_normed = at->d_normed + from * width,
          *hidden = at->hidden + from * ffn_width, *d_hidden = at->d_hidden + from * ffn_width,
          *d_gates = at->d_gates + from * 2 * ffn_width, *packed = at->packed + part * PACKED;
    linear_rows_backward(grad, of->down, rows, ffn_width, width, d_hidden, packed);
    swiglu_backward(d_hidden, gates, rows, ffn_width, d_gates, hidden);
    normalise(attended, at->in.inverse_2 + i, of->mlp_norm, rows, width, normed);
    linear_rows_backward(d_gates, of->gate_up, rows, width, 2 * ffn_width, d_normed, packed);
    norm_rows_backward(d_normed, grad, attended, of->mlp_norm, at->in.inverse_2 + i, rows, width,
                       at->d_attended + i * width);
    linear_rows_backward(at->d_attended + i * width, of->out, rows, heads_width(of), width,
                         at->d_mixed + i * heads_width(of), packed);
}

static void before_attention(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    long width = of->width, rows = end - from, i = at->first + from;
    float *d_normed = at->d_normed + from * width;
    normalise(at->x + i * width, at->in.inverse + i, of->attention_norm, rows, width, at->normed + from * width);
    linear_rows_backward(at->d_heads + i * qkv_width(of), of->qkv, rows, width, qkv_width(of), d_normed,
                         at->packed + part * PACKED);
    norm_rows_backward(d_normed, at->d_attended + i * width, at->x + i * width, of->attention_norm, at->in.inverse + i,
                       rows, width, at->d_x + i * width);
}

/* Outputs `from` to `end` of one weight's gradient: what the rows at hand add to it. */
static void add_weight(const call *at, long part, const float *grad, const float *x, long inputs, long outputs,
                       long from, long end, float *d_weight) {
    if (end > outputs) end = outputs;
    for (long i = 0; i < at->rows && from < end; i += BACKWARD_BLOCK) {
        long rows = least(at->rows - i, BACKWARD_BLOCK);
        weight_gradient(grad + i * outputs, x + i * inputs, rows, inputs, outputs, from, end, at->first + i > 0,
                        d_weight, at->packed + part * PACKED);
    }
}

/* Weights after attention, their outputs behind one another. */
static void add_weights_after(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    long width = of->width, ffn_width = of->ffn_width, i = at->first;
    add_weight(at, part, at->d_gates, at->normed, width, 2 * ffn_width, from, end, at->to.gate_up);
    from -= 2 * ffn_width, end -= 2 * ffn_width;
    add_weight(at, part, at->grad + i * width, at->hidden, ffn_width, width, from > 0 ? from : 0, end, at->to.down);
    from -= width, end -= width;
    add_weight(at, part, at->d_attended + i * width, at->in.mixed + i * heads_width(of), heads_width(of), width,
               from > 0 ? from : 0, end, at->to.out);
}

static void add_weights_before(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    add_weight(at, part, at->d_heads + at->first * qkv_width(of), at->normed, of->width, qkv_width(of), from, end,
               at->to.qkv);
}

static void to_float(const double *sums, long width, float *to) {
    for (long d = 0; to && d < width; d++) to[d] = (float)sums[d];
}

/* The gradients of x and of all weights from grad [batch, length, width] and what the pass kept. Returns 0, or 1 where
 * memory is short.
 */
int layer_backward(const layer *of, const float *grad, const float *x, const float *keeps, float *d_x,
                   const gradients *to) {
    long rows = rows_of(of), width = of->width, ffn_width = of->ffn_width, heads = heads_width(of), all = qkv_width(of);
    long threads = worth_while(of->threads, 4.0 * rows * width * (all + heads + 3 * ffn_width));
    long at_once = threads > 1 ? 4 * threads * BACKWARD_BLOCK : BACKWARD_BLOCK;
    call at = {.of = of, .grad = grad, .x = x, .to = *to, .d_x = d_x};
    float **parts[] = {&at.d_heads, &at.d_mixed,  &at.d_attended, &at.normed, &at.d_normed,
                       &at.hidden,  &at.d_hidden, &at.d_gates,    &at.packed};
    long sizes[] = {rows * all,      rows * heads,        rows * width,        at_once * width,
                    at_once * width, at_once * ffn_width, at_once * ffn_width, at_once * 2 * ffn_width,
                    threads * PACKED};
    float *scratch = room_for(lay_out(NULL, 9, parts, sizes));
    double *sums = calloc(2 * width + all, sizeof *sums);
    if (!scratch || !sums) {
        free(scratch), free(sums);
        return 1;
    }
    lay_out(scratch, 9, parts, sizes);
    at.norm_sums = sums, at.norm_2_sums = sums + width, at.bias_sums = sums + 2 * width;
    lay_out_kept(of, (float *)keeps, rows, &at.in);
    for (at.first = 0; at.first < rows; at.first += at_once) {
        at.rows = least(rows - at.first, at_once);
        in_parts(after_attention, &at, at.rows, TILE_ROWS, threads);
        in_parts(add_weights_after, &at, 2 * ffn_width + 2 * width, TILE_ROWS, threads);
        norm_weight_sums(at.d_normed, at.in.attended + at.first * width, at.in.inverse_2 + at.first, at.rows, width,
                         at.norm_2_sums);
    }
    int problem = attend_backward(at.d_mixed, at.in.heads, at.in.mixed, at.in.tops, at.in.totals, of->q_norm,
                                  of->k_norm, of->eps, of->turns, of->batch, of->length, of->num_heads,
                                  of->num_kv_heads, of->head_width, of->threads, at.d_heads, to->q_norm, to->k_norm);
    for (at.first = 0; !problem && at.first < rows; at.first += at_once) {
        at.rows = least(rows - at.first, at_once);
        in_parts(before_attention, &at, at.rows, TILE_ROWS, threads);
        in_parts(add_weights_before, &at, all, TILE_ROWS, threads);
        norm_weight_sums(at.d_normed, x + at.first * width, at.in.inverse + at.first, at.rows, width, at.norm_sums);
        if (to->qkv_bias) add_rows(at.d_heads + at.first * all, at.rows, all, at.bias_sums);
    }
    to_float(at.norm_sums, width, to->attention_norm);
    to_float(at.norm_2_sums, width, to->mlp_norm);
    to_float(at.bias_sums, all, to->qkv_bias);
    free(scratch), free(sums);
    return problem;
}
