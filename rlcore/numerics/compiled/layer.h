/* A layer of a decoder: attention and a gated MLP, each behind an RMSNorm and added to the stream. */
#ifndef RLCORE_LAYER_H
#define RLCORE_LAYER_H

#include <stdint.h>

#include "lanes.h"

/* Its sizes and weights, as `rlcore.models.decoder.Layer` has them; what a family does not have is NULL. */
typedef struct {
    long batch, length, num_heads, num_kv_heads, head_width, width, ffn_width, positions, threads;
    const float *attention_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *mlp_norm, *gate_up, *down;
    const float *turns; /* [positions, 2 * head_width] */
    float eps;
} layer;

/* What a pass leaves for its gradient, one after another. */
typedef struct {
    float *heads;               /* [rows, qkv_width] */
    float *mixed;               /* [rows, heads_width] */
    float *attended;            /* [rows, width]: the stream between attention and MLP */
    float *gates;               /* [rows, 2 * ffn_width] */
    float *inverse, *inverse_2; /* [rows]: what rows were multiplied with to be normalised */
    float *tops, *totals;       /* [batch, num_heads, length] */
} kept;

static inline long rows_of(const layer *of) { return of->batch * of->length; }
static inline long heads_width(const layer *of) { return of->num_heads * of->head_width; }
static inline long qkv_width(const layer *of) { return heads_width(of) + 2 * of->num_kv_heads * of->head_width; }

/* Where each lies in `all`; `rows` are those whose attended and gates are kept, all of them or a block of each thread.
 * -> how many numbers there are.
 */
static inline long lay_out_kept(const layer *of, float *all, long rows, kept *to) {
    long whole = rows_of(of);
    float **parts[] = {&to->heads, &to->mixed,  &to->attended, &to->gates,
                       &to->tops,  &to->totals, &to->inverse,  &to->inverse_2};
    long sizes[] = {whole * qkv_width(of),
                    whole * heads_width(of),
                    rows * of->width,
                    rows * 2 * of->ffn_width,
                    whole * of->num_heads,
                    whole * of->num_heads,
                    whole,
                    whole};
    return lay_out(all, 8, parts, sizes);
}

#endif
