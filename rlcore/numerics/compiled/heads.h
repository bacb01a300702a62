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

/* The lanes of a head, from d on, whose halves have changed places. */
INLINE lanes crossed(const float *head, long d, long width) {
    long half = width / 2;
    if (half % LANES == 0) return *(const lanes *)(head + (d < half ? d + half : d - half));
    lanes x;
    for (int l = 0; l < LANES; l++) x[l] = head[d + l < half ? d + l + half : d + l - half];
    return x;
}

/* Halves of a head are pairs (Su et al. 2021); the sines of the first half are negative. y is not the head. */
INLINE void turn(const float *head, const float *turns, float sign, long width, float *y) {
    for (long d = 0; d < width; d += LANES) {
        lanes cosines = *(const lanes *)(turns + d), sines = *(const lanes *)(turns + width + d);
        lanes across = width == LANES ? swapped(*(const lanes *)head) : crossed(head, d, width);
        *(lanes *)(y + d) = fused(*(const lanes *)(head + d), cosines, across * (sines * all(sign)));
    }
}

/* A head as it meets others; `room` is for one. */
INLINE void turned(const heads_of *of, const float *head, const float *norm, long position, float *room, float *y) {
    long width = of->width;
    if (norm) {
        lanes by = all(inverse_root(head, of->eps, width));
        for (long d = 0; d < width; d += LANES)
            *(lanes *)(room + d) = *(const lanes *)(head + d) * by * *(const lanes *)(norm + d);
        head = room;
    }
    turn(head, of->turns + 2 * position * width, 1.0f, width, y);
}

/* The gradient of a head from that of what `turned` made of it; adds to that of its norm. */
INLINE void turned_backward(const heads_of *of, const float *grad, const float *head, const float *norm, long position,
                            float *d_head, double *d_norm) {
    long width = of->width;
    turn(grad, of->turns + 2 * position * width, -1.0f, width, d_head);
    if (!norm) return;
    float inverse = inverse_root(head, of->eps, width);
    norm_weight_sums(d_head, head, &inverse, 1, width, d_norm);
    normalised_backward(d_head, head, norm, inverse, width, d_head);
}

#endif
