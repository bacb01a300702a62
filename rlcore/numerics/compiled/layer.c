/* A layer in one call, a block of rows at a time: what is made of a row never leaves the cache before it is used.
 *
 * Each step has the bits that its own kernel gives: a norm, a linear layer, attention, SwiGLU and a sum.
 */
#include "layer.h"

#include <stdlib.h>

#include "kernels.h"
#include "linear.h"
#include "threads.h"

typedef struct {
    const layer *of;
    const float *x;
    kept in;
    int is_kept;
    float *y, *scratch;
    long room; /* of `scratch`, for each thread */
} call;

static void before_attention(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    float *normed = at->scratch + part * at->room, *packed = normed + BLOCK * of->width;
    for (long i = from; i < end; i += BLOCK) {
        long rows = least(BLOCK, end - i);
        rms_norm(at->x + i * of->width, NULL, of->attention_norm, of->eps, rows, of->width, NULL, normed,
                 at->in.inverse + i);
        linear_rows(normed, of->qkv, of->qkv_bias, rows, of->width, qkv_width(of), at->in.heads + i * qkv_width(of),
                    packed);
    }
}

static void after_attention(void *given, long part, long from, long end) {
    const call *at = given;
    const layer *of = at->of;
    long width = of->width, ffn_width = of->ffn_width;
    float *normed = at->scratch + part * at->room, *added = normed + BLOCK * width, *hidden = added + BLOCK * width,
          *packed = hidden + BLOCK * ffn_width;
    for (long i = from; i < end; i += BLOCK) {
        long rows = least(BLOCK, end - i), where = at->is_kept ? i : part * BLOCK;
        float *attended = at->in.attended + where * width, *gates = at->in.gates + where * 2 * ffn_width;
        linear_rows(at->in.mixed + i * heads_width(of), of->out, NULL, rows, heads_width(of), width, added, packed);
        rms_norm(at->x + i * width, added, of->mlp_norm, of->eps, rows, width, attended, normed, at->in.inverse_2 + i);
        linear_rows(normed, of->gate_up, NULL, rows, width, 2 * ffn_width, gates, packed);
        swiglu(gates, rows, ffn_width, hidden);
        linear_rows(hidden, of->down, NULL, rows, ffn_width, width, added, packed);
        for (long d = 0; d < rows * width; d++) at->y[i * width + d] = attended[d] + added[d];
    }
}

/* How many numbers a pass keeps for its gradient. */
long layer_keeps(const layer *of) { return lay_out_kept(of, NULL, rows_of(of), &(kept){0}); }

/* y [batch, length, width] of x, after `starts` positions of a cache as `attend` has it, or without one (NULL);
 * `keeps` is room for what the gradient needs, or NULL. Returns 0, 1 where memory is short, 2 where a sequence does
 * not fit into cache or turns.
 */
int layer_forward(const layer *of, const float *x, const int64_t *starts, float *keys, float *values, long capacity,
                  float *keeps, float *y) {
    long rows = rows_of(of), row_size = qkv_width(of) + heads_width(of) + 3 * of->ffn_width;
    long threads = worth_while(of->threads, 2.0 * rows * of->width * row_size);
    call at = {.of = of, .x = x, .is_kept = keeps != NULL, .y = y};
    at.room = rounded_up(BLOCK * (2 * of->width + of->ffn_width)) + PACKED;
    long own = keeps ? 0 : lay_out_kept(of, NULL, threads * BLOCK, &at.in);
    at.scratch = room_for(threads * at.room + own);
    if (!at.scratch) return 1;
    lay_out_kept(of, keeps ? keeps : at.scratch + threads * at.room, keeps ? rows : threads * BLOCK, &at.in);
    in_parts(before_attention, &at, rows, TILE_ROWS, threads);
    int problem = attend(at.in.heads, of->q_norm, of->k_norm, of->eps, of->turns, starts, of->batch, of->length,
                         of->num_heads, of->num_kv_heads, of->head_width, of->positions, keys, values, capacity,
                         of->threads, at.in.mixed, keeps ? at.in.tops : NULL, keeps ? at.in.totals : NULL);
    if (!problem) in_parts(after_attention, &at, rows, TILE_ROWS, threads);
    free(at.scratch);
    return problem;
}
