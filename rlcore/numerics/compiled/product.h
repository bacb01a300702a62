/* Products of matrices: each number is a sum in the order of what is summed over, fused, one after another.
 *
 * So no bit depends on how many rows or columns there are, nor on how they are cut into tiles, which is done as the
 * processor's registers have it.
 */
#ifndef RLCORE_PRODUCT_H
#define RLCORE_PRODUCT_H

#include "lanes.h"

#if defined(__AVX512F__)
#define TILE_ROWS 12
#define TILE_LANES 2
#else
#define TILE_ROWS 6
#define TILE_LANES 1
#endif
#define TILE_WIDTH (TILE_LANES * LANES)

INLINE long least(long a, long b) { return a < b ? a : b; }

/* What a compiler does not look through: with a pointer for each row of a tile it would run out of registers. */
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

/* A matrix by the distances of its neighbours: number (i, j) is at[i * down + j * across]. */
typedef struct {
    const float *at;
    long down, across;
} matrix;

#define SWAP(step, ...)                                                                                                \
    EACH(i, LANES)                                                                                                     \
        if (!(i & step)) {                                                                                             \
            lanes a = x[i], b = x[i + step];                                                                           \
            x[i] = PICKED(a, b, FIRST_##step);                                                                         \
            x[i + step] = PICKED(a, b, SECOND_##step);                                                                 \
        }
#define FIRST_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define SECOND_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define FIRST_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define SECOND_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define FIRST_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define SECOND_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define FIRST_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define SECOND_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31

/* Sixteen rows of sixteen become columns. */
INLINE void transpose(lanes *x) {
    SWAP(8);
    SWAP(4);
    SWAP(2);
    SWAP(1);
}

/* Columns of b from `first` on, `count` of V times LANES, side by side: [inner, V * LANES], zeros behind them. */
INLINE void pack(const int V, matrix b, long inner, long first, long count, float *packed) {
    long width = V * LANES;
    if (b.across == 1) {
        for (long k = 0; k < inner; k++)
            EACH(v, V)
                *(lanes *)(packed + k * width + v * LANES) =
                    v * LANES < count ? get(b.at + k * b.down + first + v * LANES, count - v * LANES) : all(0.0f);
        return;
    }
    for (long j = 0; j < width; j += LANES)
        for (long k = 0; k < inner; k += LANES) {
            lanes block[LANES];
            EACH(l, LANES) block[l] = j + l < count ? get(b.at + (first + j + l) * b.across + k, inner - k) : all(0.0f);
            transpose(block);
            EACH(l, LANES)
                if (k + l < inner) *(lanes *)(packed + (k + l) * width + j) = block[l];
        }
}

/* R rows of c, `count` columns of a panel: what is there and the products with it, or those alone. */
INLINE void tile(const int R, const int V, matrix a, long inner, const float *packed, int adds, float *c, long stride,
                 long count) {
    lanes sums[TILE_ROWS][TILE_LANES];
    EACH(r, R)
        EACH(v, V)
            sums[r][v] = adds && v * LANES < count ? get(c + r * stride + v * LANES, count - v * LANES) : all(0.0f);
    const float *rows[(TILE_ROWS + 3) / 4];
    EACH(r, (R + 3) / 4) rows[r] = a.at + 4 * r * a.down;
    for (long k = 0; k < inner; k++) {
        lanes b[TILE_LANES];
        EACH(v, V) b[v] = *(const lanes *)(packed + (k * V + v) * LANES);
        EACH(r, R) {
            lanes x = all(rows[r / 4][r % 4 * a.down]);
            EACH(v, V) sums[r][v] = fused(x, b[v], sums[r][v]);
        }
        EACH(r, (R + 3) / 4) {
            rows[r] += a.across;
            OPAQUE(rows[r]);
        }
    }
    EACH(r, R)
        EACH(v, V)
            if (v * LANES < count) put(c + r * stride + v * LANES, sums[r][v], count - v * LANES);
}

#define DEPTH 256 /* of what is packed, and */
#define CHUNK 512 /* its columns: half a megabyte, which a core's own cache holds */
#define PACKED (DEPTH * CHUNK)

/* R rows of a chunk of c, panel by panel. */
INLINE void strip(const int R, matrix a, long inner, const float *packed, int adds, float *c, long stride, long count) {
    for (; count > LANES * (TILE_LANES - 1); count -= TILE_WIDTH, c += TILE_WIDTH, packed += inner * TILE_WIDTH)
        tile(R, TILE_LANES, a, inner, packed, adds, c, stride, count);
    if (count > 0) tile(R, 1, a, inner, packed, adds, c, stride, count);
}

/* A chunk of c [rows, stride], its `count` columns from b's. */
static void chunk(matrix a, matrix b, long rows, long inner, long count, int adds, float *c, long stride,
                  float *packed) {
    long first = 0;
    for (; first + LANES * (TILE_LANES - 1) < count; first += TILE_WIDTH)
        pack(TILE_LANES, b, inner, first, count - first, packed + first * inner);
    if (first < count) pack(1, b, inner, first, count - first, packed + first * inner);
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS, a.at += TILE_ROWS * a.down, c += TILE_ROWS * stride)
        strip(TILE_ROWS, a, inner, packed, adds, c, stride, count);
    for (; rows >= TILE_ROWS / 3; rows -= TILE_ROWS / 3, a.at += TILE_ROWS / 3 * a.down, c += TILE_ROWS / 3 * stride)
        strip(TILE_ROWS / 3, a, inner, packed, adds, c, stride, count);
    for (; rows > 0; rows--, a.at += a.down, c += stride) strip(1, a, inner, packed, adds, c, stride, count);
}

/* c [rows, columns] = a [rows, inner] b [inner, columns], or that and what is there; `packed` [PACKED]. */
static void multiply(matrix a, matrix b, long rows, long inner, long columns, int adds, float *c, float *packed) {
    for (long j = 0; j < columns; j += CHUNK)
        for (long k = 0; k < inner; k += DEPTH) {
            matrix left = {a.at + k * a.across, a.down, a.across};
            matrix right = {b.at + k * b.down + j * b.across, b.down, b.across};
            chunk(left, right, rows, least(inner - k, DEPTH), least(columns - j, CHUNK), adds || k, c + j, columns,
                  packed);
        }
}

#endif
