/* Causal attention of heads over themselves, or over what a cache has with them, and its gradient.
 *
 * A query's numbers are added in the order of the keys that it sees, and of nothing else: whether it comes alone or
 * with others, and what lies behind it, changes no bit. Keys lie transposed, [width, positions], so that
 * sixteen of them meet a query at once.
 */
#include "attention.h"

#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"
#include "threads.h"

typedef struct {
    float *keys, *values; /* of one sample and kv head: [width, capacity], [capacity, width] */
    long capacity, start;
    float *scores;  /* [TILE, capacity] */
    float *queries; /* [TILE, width] */
    float *head;    /* [2 * width] */
} room;

/* R queries of one kv head: which position of the pass each is of, and which head; positions do not fall. */
INLINE void attend_tile(const int R, const heads_of *of, const float *heads, long sample, const long *positions,
                        const long *numbers, const room *in, float *mixed, float *tops, float *totals) {
    long width = of->width, most = 0;
    queries tile;
    float *to[TILE];
    for (int r = 0; r < R; r++) {
        const float *head = heads + place(of, sample, positions[r], numbers[r]);
        turned(of, head, of->q_norm, in->start + positions[r], in->head, in->queries + r * width);
        tile.rows[r] = in->queries + r * width;
        tile.seen[r] = most = in->start + positions[r] + 1;
        to[r] = mixed + ((sample * of->length + positions[r]) * of->num_heads + numbers[r]) * width;
    }
    dots(R, tile.rows, width, in->keys, in->capacity, most, in->scores, in->capacity);
    float total[TILE], scale = 1.0f / sqrtf((float)width);
    for (int r = 0; r < R; r++) {
        float top;
        total[r] = portions(in->scores + r * in->capacity, scale, tile.seen[r], most, &top, 0);
        if (tops) {
            long row = (sample * of->num_heads + numbers[r]) * of->length + positions[r];
            tops[row] = top, totals[row] = total[r];
        }
    }
    mixed_values(R, &tile, in->scores, in->capacity, in->values, width, to);
    for (int r = 0; r < R; r++)
        for (long d = 0; d < width; d += LANES) put(to[r] + d, get(to[r] + d, width - d) / all(total[r]), width - d);
}

/* The new keys and values of one sample and kv head, behind those that are there. */
static void store(const heads_of *of, const float *heads, long sample, long kv, const room *in) {
    for (long i = 0; i < of->length; i++) {
        const float *key = heads + place(of, sample, i, of->num_heads + kv);
        const float *value = heads + place(of, sample, i, of->num_heads + of->num_kv_heads + kv);
        turned(of, key, of->k_norm, in->start + i, in->head, in->queries);
        for (long d = 0; d < of->width; d++) in->keys[d * in->capacity + in->start + i] = in->queries[d];
        memcpy(in->values + (in->start + i) * of->width, value, 4 * of->width);
    }
}

static void attend_kv(const heads_of *of, const float *heads, long sample, long kv, const room *in, float *mixed,
                      float *tops, float *totals) {
    long group = of->num_heads / of->num_kv_heads, count = group * of->length, n = 0;
    store(of, heads, sample, kv, in);
    long positions[TILE], numbers[TILE];
    for (; n < count; n += TILE) {
        int held = n + TILE <= count ? TILE : (int)(count - n);
        /* Position by position, then head by head: neighbours see nearly the same keys. */
        for (int r = 0; r < held; r++) {
            positions[r] = (n + r) % of->length;
            numbers[r] = kv * group + (n + r) / of->length;
        }
        int rises = 1;
        for (int r = 1; r < held; r++) rises &= positions[r] >= positions[r - 1];
        if (held == TILE && rises)
            attend_tile(TILE, of, heads, sample, positions, numbers, in, mixed, tops, totals);
        else if (held == 2 && rises)
            attend_tile(2, of, heads, sample, positions, numbers, in, mixed, tops, totals);
        else
            for (int r = 0; r < held; r++)
                attend_tile(1, of, heads, sample, positions + r, numbers + r, in, mixed, tops, totals);
    }
}

/* What a call is given and makes. */
typedef struct {
    const heads_of *of;
    const float *heads;
    const int64_t *starts;
    float *keys, *values;
    long capacity;
    float *mixed, *tops, *totals;
    float *scratch;
    long room_size; /* of the scratch of a thread */
} call;

static void attend_samples(void *given, long part, long from, long end) {
    const call *at = given;
    const heads_of *of = at->of;
    float *scores = at->scratch + part * at->room_size, *queries = scores + TILE * at->capacity,
          *head = queries + TILE * of->width, *own = head + 2 * of->width;
    room in = {own, own + of->width * at->capacity, at->capacity, 0, scores, queries, head};
    for (long sample = from; sample < end; sample++)
        for (long kv = 0; kv < of->num_kv_heads; kv++) {
            if (at->keys) {
                long slot = (sample * of->num_kv_heads + kv) * of->width * at->capacity;
                in.keys = at->keys + slot, in.values = at->values + slot, in.start = at->starts[sample];
            }
            attend_kv(of, at->heads, sample, kv, &in, at->mixed, at->tops, at->totals);
        }
}

/* mixed [batch, length, num_heads, width] of heads, after `starts` [batch] positions that a cache has, whose keys are
 * [batch, kv_heads, width, capacity] and values [batch, kv_heads, capacity, width]; the new ones are written there.
 * Without a cache (NULL) all begin at 0. `tops` and `totals` [batch, num_heads, length] are what the gradient needs, or
 * NULL; `turns` has `positions` rows. Returns 0, 1 where memory is short, 2 where a sequence does not fit into cache or
 * turns.
 */
int attend(const float *heads, const float *q_norm, const float *k_norm, float eps, const float *turns,
           const int64_t *starts, long batch, long length, long num_heads, long num_kv_heads, long width,
           long positions, float *keys, float *values, long capacity, long threads, float *mixed, float *tops,
           float *totals) {
    heads_of of = {batch, length, num_heads, num_kv_heads, width, q_norm, k_norm, eps, turns};
    call at = {.of = &of, .heads = heads, .starts = starts, .keys = keys, .values = values, .mixed = mixed};
    at.tops = tops, at.totals = totals, at.capacity = keys ? capacity : rounded_up(length);
    long last = (at.capacity < positions ? at.capacity : positions) - length, most = length;
    for (long sample = 0; keys && sample < batch; sample++) {
        if (starts[sample] < 0 || starts[sample] > last) return 2;
        most = starts[sample] + length > most ? starts[sample] + length : most;
    }
    threads = worth_while(threads, 4.0 * batch * num_heads * length * most * width);
    at.room_size = TILE * at.capacity + (TILE + 2) * width + (keys ? 0 : 2 * width * at.capacity);
    at.scratch = room_for(threads * at.room_size);
    if (!at.scratch) return 1;
    in_parts(attend_samples, &at, batch, 1, threads);
    free(at.scratch);
    return 0;
}
