/* A pool of threads that do the pieces of one job: n - 1 workers and the caller.
 *
 * Owns starting, waking, sharing out pieces and joining; knows nothing of ops or of what a piece is. A job is a row of stages; the
 * pieces of a stage are independent and are begun only when every piece of the stage before is done. Nobody waits for a
 * thread that holds no piece: one that the system has put aside, or that is still waking up, delays nothing. Between jobs workers spin
 * for some tens of microseconds and then sleep, so an idle pool uses no processor time. Workers block every asynchronous
 * signal: those are for the threads of the program that made the pool. One job at a time.
 */
#ifndef CX_THREADS_H
#define CX_THREADS_H

#include "caldrix.h"

#define CX_MAX_THREADS 4096
#define CX_MAX_STAGES 0xfffffeu
#define CX_MAX_PIECES 0x80000u /* of one stage */

struct cx_pool;

struct cx_job {
  uint32_t n_stages; /* up to CX_MAX_STAGES */
  /* How many pieces a stage has (up to CX_MAX_PIECES; 0 passes over it), or CX_JOB_STOP to end the job before it. Called once a
   * stage, in order, by one thread while no piece is being done. */
  uint32_t (*pieces)(void *context, uint32_t stage);
  /* Does one piece: 0 to pieces - 1. thread is 0 for the caller, 1 to n - 1 for the workers. */
  void (*run)(void *context, uint32_t stage, uint32_t piece, uint32_t thread);
  void *context;
};

#define CX_JOB_STOP UINT32_MAX

/* n_threads counts the caller: 1 to CX_MAX_THREADS. */
int cx_pool_new(uint32_t n_threads, struct cx_pool **out, struct cx_error *error);
void cx_pool_free(struct cx_pool *pool); /* joins the workers; NULL is allowed */

/* Returns when every piece of every stage is done; what the pieces wrote is seen by the caller, and job is no longer needed. Fails
 * only in a process forked from the pool's own, which has no workers. */
int cx_pool_run(struct cx_pool *pool, const struct cx_job *job, struct cx_error *error);

#endif
