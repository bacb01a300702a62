/* Work in parts, each by a thread of its own; which thread does what changes no bit, since no number is of two. */
#ifndef RLCORE_THREADS_H
#define RLCORE_THREADS_H

#include <pthread.h>

#define MOST_THREADS 64
/* Operations that are worth a thread, which takes up to 100 microseconds to begin and to end. */
#define WORTH 4e7

/* What is done with numbers `from` to `end` of something; `part` counts the threads. */
typedef void work(void *given, long part, long from, long end);

typedef struct {
    work *done;
    void *given;
    long part, from, end;
} share;

static inline void *begin(void *given) {
    share *of = given;
    of->done(of->given, of->part, of->from, of->end);
    return NULL;
}

/* How many of `threads` are worth while for so many operations. */
static inline long worth_while(long threads, double operations) {
    long most = 1 + (long)(operations / WORTH);
    threads = threads < most ? threads : most;
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

/* Do numbers 0 to `count` in as many parts as there are threads, each from a multiple of `step` on. */
static inline void in_parts(work *done, void *given, long count, long step, long threads) {
    pthread_t others[MOST_THREADS];
    share shares[MOST_THREADS];
    long steps = (count + step - 1) / step, num_begun = 0;
    if (threads > steps) threads = steps ? steps : 1;
    for (long part = 0; part < threads; part++) {
        long from = steps * part / threads * step, end = steps * (part + 1) / threads * step;
        shares[part] = (share){done, given, part, from, end < count ? end : count};
    }
    for (long part = 1; part < threads; part++, num_begun++)
        if (pthread_create(&others[part], NULL, begin, &shares[part])) break;
    begin(&shares[0]);
    for (long part = 1; part < threads; part++)
        if (part <= num_begun)
            pthread_join(others[part], NULL);
        else
            begin(&shares[part]);
}

#endif
