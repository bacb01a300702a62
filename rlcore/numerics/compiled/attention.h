/* Some queries at once over the keys that each of them sees. R, how many, is known when this is compiled. */
#ifndef RLCORE_ATTENTION_H
#define RLCORE_ATTENTION_H

#include "heads.h"

#define TILE 4

/* Queries of one tile: where each lies, and how many keys it sees, which never falls from one to the next. */
typedef struct {
    const float *rows[TILE];
    long seen[TILE];
} queries;

/* to[r][j] = sum over d of rows[r][d] * columns[d][j], in the order of d, for V times LANES columns. */
INLINE void dot_columns(const int R, const int V, const float *const *rows, long width, const float *columns,
                        long stride, float *to, long to_stride) {
    lanes sums[TILE][4];
    EACH(r, R)
        EACH(v, V) sums[r][v] = all(0.0f);
    for (long d = 0; d < width; d++)
        EACH(v, V) {
            lanes column = *(const lanes *)(columns + d * stride + v * LANES);
            EACH(r, R) sums[r][v] = fused(all(rows[r][d]), column, sums[r][v]);
        }
    EACH(r, R)
        EACH(v, V) *(lanes *)(to + r * to_stride + v * LANES) = sums[r][v];
}

/* The same for `count` columns, rounded up. */
INLINE void dots(const int R, const float *const *rows, long width, const float *columns, long stride, long count,
                 float *to, long to_stride) {
    long j = 0;
    for (; j + 4 * LANES <= rounded_up(count); j += 4 * LANES)
        dot_columns(R, 4, rows, width, columns + j, stride, to + j, to_stride);
    if (j + 2 * LANES < count)
        dot_columns(R, 3, rows, width, columns + j, stride, to + j, to_stride);
    else if (j + LANES < count)
        dot_columns(R, 2, rows, width, columns + j, stride, to + j, to_stride);
    else if (j < count)
        dot_columns(R, 1, rows, width, columns + j, stride, to + j, to_stride);
}

/* to[r] += sum of shares[r][j] * values[j] for j from `from` to `end`, in the order of j, V times LANES of a row. */
INLINE void add_part(const int R, const int V, const float *shares, long stride, const float *values, long width,
                     long from, long end, float *const *to) {
    lanes sums[TILE][4];
    EACH(r, R)
        EACH(v, V) sums[r][v] = *(lanes *)(to[r] + v * LANES);
    for (long j = from; j < end; j++)
        EACH(v, V) {
            lanes value = *(const lanes *)(values + j * width + v * LANES);
            EACH(r, R) sums[r][v] = fused(all(shares[r * stride + j]), value, sums[r][v]);
        }
    EACH(r, R)
        EACH(v, V) *(lanes *)(to[r] + v * LANES) = sums[r][v];
}

/* The same for whole rows, a multiple of LANES wide. */
INLINE void add_range(const int R, const float *shares, long stride, const float *values, long width, long from,
                      long end, float *const *to) {
    float *at[TILE];
    for (long d = 0; d < width; d += d + 4 * LANES <= width ? 4 * LANES : LANES) {
        EACH(r, R) at[r] = to[r] + d;
        if (d + 4 * LANES <= width)
            add_part(R, 4, shares, stride, values + d, width, from, end, at);
        else
            add_part(R, 1, shares, stride, values + d, width, from, end, at);
    }
}

/* to[r] = sum of shares[r][j] * values[j] over the keys that r sees, and no others: what is not seen may be NaN. */
INLINE void mixed_values(const int R, const queries *of, const float *shares, long stride, const float *values,
                         long width, float *const *to) {
    EACH(r, R) memset(to[r], 0, 4 * width);
    add_range(R, shares, stride, values, width, 0, of->seen[0], to);
    for (int r = 1; r < R; r++)
        if (of->seen[r] > of->seen[0])
            add_range(1, shares + r * stride, stride, values, width, of->seen[0], of->seen[r], to + r);
}

/* Scores to e^(score - top), 0 for keys that are not seen; `top` is found where it is not given. -> their sum */
INLINE float portions(float *scores, float scale, long seen, long count, float *top, int is_given) {
    if (!is_given) {
        lanes tops = all(-INFINITY);
        for (long j = 0; j < seen; j += LANES)
            tops = larger(tops, first(seen - j, *(lanes *)(scores + j) * all(scale), -INFINITY));
        *top = largest(tops);
    }
    lanes sums = all(0.0f);
    for (long j = 0; j < count; j += LANES) {
        lanes part = exponential(*(lanes *)(scores + j) * all(scale) - all(*top));
        part = first(seen - j, part, 0.0f);
        *(lanes *)(scores + j) = part;
        sums += part;
    }
    return sum(sums);
}

#endif
