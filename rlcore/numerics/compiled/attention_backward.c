/* The gradient of attention of a pass: shares are computed again, a tile of queries at a time. */
#include "attention.h"

#include <stdlib.h>

typedef struct {
    long capacity;
    float *keys_across, *values_across; /* [width, capacity], of one sample and kv head */
    float *keys;                        /* [length, width], turned */
    float *values;                      /* [length, width] */
    float *d_keys, *d_values;           /* [length, width] */
    float *shares, *slopes;             /* [TILE, capacity] */
    float *queries, *d_queries;         /* [TILE, width] */
    float *head;                        /* [2 * width] */
    double *d_q_norm, *d_k_norm;        /* [width] */
} room;

/* What a call reads, each as `attend` has it. */
typedef struct {
    const float *grad, *heads, *mixed, *tops, *totals;
    float *d_heads;
} given;

/* to[j] += by[r][j] * rows[r] for each r in turn. */
INLINE void add_outer(const int R, const float *by, long stride, const float *const *rows, long width, long count,
                      float *to) {
    for (long d = 0; d < width; d += LANES) {
        lanes parts[TILE];
        EACH(r, R) parts[r] = get(rows[r] + d, width - d);
        for (long j = 0; j < count; j++) {
            lanes total = get(to + j * width + d, width - d);
            EACH(r, R) total = fused(all(by[r * stride + j]), parts[r], total);
            put(to + j * width + d, total, width - d);
        }
    }
}

INLINE float dot(const float *a, const float *b, long width) {
    lanes sums = all(0.0f);
    for (long d = 0; d < width; d += LANES) sums = fused(get(a + d, width - d), get(b + d, width - d), sums);
    return sum(sums);
}

INLINE void tile_backward(const int R, const heads_of *of, const given *from, long sample, long number, long position,
                          const room *in) {
    long width = of->width, capacity = in->capacity, most = position + R;
    float scale = 1.0f / sqrtf((float)width);
    queries tile;
    const float *grads[TILE];
    float *d_queries[TILE];
    EACH(r, R) {
        turned(of, from->heads + place(of, sample, position + r, number), of->q_norm, position + r, in->head,
               in->queries + r * width);
        tile.rows[r] = in->queries + r * width;
        tile.seen[r] = position + r + 1;
        grads[r] = from->grad + ((sample * of->length + position + r) * of->num_heads + number) * width;
        d_queries[r] = in->d_queries + r * width;
    }
    dots(R, tile.rows, width, in->keys_across, capacity, most, in->shares, capacity);
    dots(R, grads, width, in->values_across, capacity, most, in->slopes, capacity);
    EACH(r, R) {
        long row = (sample * of->num_heads + number) * of->length + position + r;
        float top = from->tops[row], share = 1.0f / from->totals[row];
        float along = dot(grads[r], from->mixed + (grads[r] - from->grad), width);
        portions(in->shares + r * capacity, scale, tile.seen[r], most, &top, 1);
        for (long j = 0; j < most; j += LANES) {
            lanes *shares = (lanes *)(in->shares + r * capacity + j),
                  *slopes = (lanes *)(in->slopes + r * capacity + j);
            *shares *= all(share);
            *slopes = first(tile.seen[r] - j, *shares * (*slopes - all(along)) * all(scale), 0.0f);
        }
    }
    mixed_values(R, &tile, in->slopes, capacity, in->keys, width, d_queries);
    add_outer(R, in->shares, capacity, grads, width, most, in->d_values);
    add_outer(R, in->slopes, capacity, tile.rows, width, most, in->d_keys);
    EACH(r, R) {
        long head = place(of, sample, position + r, number);
        turned_backward(of, d_queries[r], from->heads + head, of->q_norm, position + r, in->head, from->d_heads + head,
                        in->d_q_norm);
    }
}

static void kv_backward(const heads_of *of, const given *from, long sample, long kv, const room *in) {
    long width = of->width, length = of->length, group = of->num_heads / of->num_kv_heads;
    long key_head = of->num_heads + kv, value_head = key_head + of->num_kv_heads;
    for (long i = 0; i < length; i++) {
        const float *value = from->heads + place(of, sample, i, value_head);
        turned(of, from->heads + place(of, sample, i, key_head), of->k_norm, i, in->head, in->keys + i * width);
        for (long d = 0; d < width; d++) {
            in->keys_across[d * in->capacity + i] = in->keys[i * width + d];
            in->values_across[d * in->capacity + i] = value[d];
        }
    }
    memset(in->d_keys, 0, 4 * length * width);
    memset(in->d_values, 0, 4 * length * width);
    for (long number = kv * group; number < (kv + 1) * group; number++) {
        long i = 0;
        for (; i + TILE <= length; i += TILE) tile_backward(TILE, of, from, sample, number, i, in);
        for (; i < length; i++) tile_backward(1, of, from, sample, number, i, in);
    }
    for (long i = 0; i < length; i++) {
        long key = place(of, sample, i, key_head);
        turned_backward(of, in->d_keys + i * width, from->heads + key, of->k_norm, i, in->head, from->d_heads + key,
                        in->d_k_norm);
        memcpy(from->d_heads + place(of, sample, i, value_head), in->d_values + i * width, 4 * width);
    }
}

/* d_heads as heads, d_q_norm and d_k_norm [width] (or NULL) from grad [batch, length, num_heads, width] of a pass that
 * began at 0. Returns 0, or 1 where memory is short.
 */
int attend_backward(const float *grad, const float *heads, const float *mixed, const float *tops, const float *totals,
                    const float *q_norm, const float *k_norm, float eps, const float *turns, long batch, long length,
                    long num_heads, long num_kv_heads, long width, float *d_heads, float *d_q_norm, float *d_k_norm) {
    heads_of of = {batch, length, num_heads, num_kv_heads, width, q_norm, k_norm, eps, turns};
    given from = {grad, heads, mixed, tops, totals, d_heads};
    long capacity = rounded_up(length), across = width * capacity, rows = length * width;
    float *scratch = malloc(4 * (2 * across + 3 * rows + 2 * TILE * capacity + (2 * TILE + 2) * width));
    double *d_norms = calloc(2 * width, sizeof *d_norms);
    if (!scratch || !d_norms) {
        free(scratch), free(d_norms);
        return 1;
    }
    room in = {.capacity = capacity, .d_q_norm = d_norms, .d_k_norm = d_norms + width};
    float **parts[] = {&in.keys_across, &in.values_across, &in.keys,    &in.d_keys,    &in.d_values,
                       &in.shares,      &in.slopes,        &in.queries, &in.d_queries, &in.head};
    long sizes[] = {across,          across,          rows,         rows,         rows,
                    TILE * capacity, TILE * capacity, TILE * width, TILE * width, 2 * width};
    float *next = scratch;
    for (int part = 0; part < 10; next += sizes[part++]) *parts[part] = next;
    for (long sample = 0; sample < batch; sample++)
        for (long kv = 0; kv < num_kv_heads; kv++) kv_backward(&of, &from, sample, kv, &in);
    for (long d = 0; q_norm && d < width; d++) d_q_norm[d] = (float)d_norms[d], d_k_norm[d] = (float)d_norms[width + d];
    free(scratch), free(d_norms);
    return 0;
}
