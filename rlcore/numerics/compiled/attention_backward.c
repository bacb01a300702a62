/* The gradient of attention of a pass: shares are computed again, a tile of queries at a time. */
#include "attention.h"

#include <stdlib.h>

#include "kernels.h"
#include "threads.h"

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

/* What a call reads and makes, each as `attend` has it. */
typedef struct {
    const heads_of *of;
    const float *grad, *heads, *mixed, *tops, *totals;
    float *d_heads;
    double *d_norms; /* [batch, 2, width]: of queries, then of keys, from each sample */
    float *scratch;
    long capacity, room_size; /* the scratch of a thread */
} call;

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

INLINE void tile_backward(const int R, const heads_of *of, const call *from, long sample, long number, long position,
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
        turned_backward(of, d_queries[r], from->heads + head, of->q_norm, position + r, from->d_heads + head,
                        in->d_q_norm);
    }
}

static void kv_backward(const heads_of *of, const call *from, long sample, long kv, const room *in) {
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
        turned_backward(of, in->d_keys + i * width, from->heads + key, of->k_norm, i, from->d_heads + key,
                        in->d_k_norm);
        memcpy(from->d_heads + place(of, sample, i, value_head), in->d_values + i * width, 4 * width);
    }
}

static void samples_backward(void *given, long part, long from, long end) {
    const call *at = given;
    const heads_of *of = at->of;
    room in = {.capacity = at->capacity};
    float **parts[] = {&in.keys_across, &in.values_across, &in.keys,    &in.d_keys,    &in.d_values,
                       &in.shares,      &in.slopes,        &in.queries, &in.d_queries, &in.head};
    long width = of->width, across = width * at->capacity, rows = of->length * width, shares = TILE * at->capacity;
    long sizes[] = {across, across, rows, rows, rows, shares, shares, TILE * width, TILE * width, 2 * width};
    lay_out(at->scratch + part * at->room_size, 10, parts, sizes);
    for (long sample = from; sample < end; sample++) {
        in.d_q_norm = at->d_norms + sample * 2 * width, in.d_k_norm = in.d_q_norm + width;
        for (long kv = 0; kv < of->num_kv_heads; kv++) kv_backward(of, at, sample, kv, &in);
    }
}

/* d_heads as heads, d_q_norm and d_k_norm [width] (or NULL) from grad [batch, length, num_heads, width] of a pass that
 * began at 0; norms add in fp64, positions of a sample first. Returns 0, or 1 where memory is short.
 */
int attend_backward(const float *grad, const float *heads, const float *mixed, const float *tops, const float *totals,
                    const float *q_norm, const float *k_norm, float eps, const float *turns, long batch, long length,
                    long num_heads, long num_kv_heads, long width, long threads, float *d_heads, float *d_q_norm,
                    float *d_k_norm) {
    heads_of of = {batch, length, num_heads, num_kv_heads, width, q_norm, k_norm, eps, turns};
    call at = {.of = &of, .grad = grad, .heads = heads, .mixed = mixed, .tops = tops, .totals = totals};
    threads = worth_while(threads, 10.0 * batch * num_heads * length * length * width);
    at.d_heads = d_heads, at.capacity = rounded_up(length);
    at.room_size = (2 * width + 2 * TILE) * at.capacity + (3 * length + 2 * TILE + 2) * width;
    at.scratch = room_for(threads * at.room_size);
    at.d_norms = calloc(2 * width * batch, sizeof *at.d_norms);
    if (!at.scratch || !at.d_norms) {
        free(at.scratch), free(at.d_norms);
        return 1;
    }
    in_parts(samples_backward, &at, batch, 1, threads);
    for (long d = 0; q_norm && d < width; d++) {
        double q = 0.0, k = 0.0;
        for (long sample = 0; sample < batch; sample++)
            q += at.d_norms[2 * sample * width + d], k += at.d_norms[(2 * sample + 1) * width + d];
        d_q_norm[d] = (float)q, d_k_norm[d] = (float)k;
    }
    free(at.scratch), free(at.d_norms);
    return 0;
}
