/* A pool of threads that all run the same function: n - 1 workers and the caller.
 *
 * Owns starting, waking, meeting and joining; knows nothing of ops or of how work is split. Between runs workers spin for
 * some tens of microseconds and then sleep, so an idle pool uses no processor time. Workers block every asynchronous
 * signal: those are for the threads of the program that made the pool. One run at a time.
 */
#ifndef CX_THREADS_H
#define CX_THREADS_H

#include "caldrix.h"

#define CX_MAX_THREADS 4096

struct cx_pool;

/* What a run calls once on every thread: thread is 0 for the caller, 1 to n - 1 for the workers. */
typedef void cx_pool_function(void *context, uint32_t thread);

/* n_threads counts the caller: 1 to CX_MAX_THREADS. */
int cx_pool_new(uint32_t n_threads, struct cx_pool **out, struct cx_error *error);
void cx_pool_free(struct cx_pool *pool); /* joins the workers; NULL is allowed */

/* Runs function on every thread and returns when all have returned. Fails only in a process forked from the pool's own,
 * which has no workers. */
int cx_pool_run(struct cx_pool *pool, cx_pool_function *function, void *context, struct cx_error *error);

/* Inside a run: returns when every thread has called it. What a thread wrote before is seen by all after. The last to come
 * calls action (if not NULL) before any leaves, so what that writes needs no other protection. */
void cx_pool_barrier(struct cx_pool *pool, void (*action)(void *context), void *context);

#endif
