/* Queries and keys before they meet: normalised where the model does it, and turned by their positions. */
#ifndef RLCORE_HEADS_H
#define RLCORE_HEADS_H

#include "norm.h"

/* How heads lie: [batch, length, num_heads + 2 * num_kv_heads, width], queries, then keys, then values. */
typedef struct {
    long batch, length, num_heads, num_kv_heads, width;
    const float *q_norm, *k_norm; /* [width], or NULL */
    float eps;
    const float *turns; /* [positions, 2 * width]: cosines of each position, then sines */
} heads_of;

INLINE long place(const heads_of *of, long sample, long position, long head) {
    return ((sample * of->length + position) * (of->num_heads + 2 * of->num_kv_heads) + head) * of->width;
}

/* Halves of a head are pairs (Su et al. 2021); the sines of the first half are negative. `twice` is x, and x again. */
INLINE void turn(const float *twice, const float *turns, float sign, long width, float *y) {
    for (long d = 0; d < width; d += LANES) {
        long count = width - d;
        lanes crossed = get(twice + width / 2 + d, count) * (get(turns + width + d, count) * all(sign));
        put(y + d, fused(get(twice + d, count), get(turns + d, count), crossed), count);
    }
}

/* A head as it meets others; `twice` is room for two. */
INLINE void turned(const heads_of *of, const float *head, const float *norm, long position, float *twice, float *y) {
    long width = of->width;
    lanes by = all(norm ? inverse_root(head, of->eps, width) : 1.0f);
    for (long d = 0; d < width; d += LANES) {
        lanes part = get(head + d, width - d);
        if (norm) part = part * by * get(norm + d, width - d);
        put(twice + d, part, width - d);
        put(twice + width + d, part, width - d);
    }
    turn(twice, of->turns + 2 * position * width, 1.0f, width, y);
}

/* The gradient of a head from that of what `turned` made of it; adds to that of its norm. */
INLINE void turned_backward(const heads_of *of, const float *grad, const float *head, const float *norm, long position,
                            float *twice, float *d_head, double *d_norm) {
    long width = of->width;
    for (long d = 0; d < width; d += LANES) {
        put(twice + d, get(grad + d, width - d), width - d);
        put(twice + width + d, get(grad + d, width - d), width - d);
    }
    turn(twice, of->turns + 2 * position * width, -1.0f, width, d_head);
    if (norm) normalised_backward(d_head, head, norm, inverse_root(head, of->eps, width), width, d_head, d_norm);
}

#endif
