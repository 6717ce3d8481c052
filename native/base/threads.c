/* The pool of threads.h, on pthreads and C11 atomics; Linux and macOS.
 *
 * One word, the cursor, says where the job stands: the stage, how many pieces it has, and the next piece to hand out. A thread takes
 * a piece by adding one to the word; the value it gets back tells it stage and piece together, so a thread that comes late can
 * never mistake the stage, and a number past the last piece means there was nothing to take. Whoever does the last piece of a stage
 * publishes the next one. Only a thread that holds a piece may touch the job.
 *
 * A thread without a piece spins on the cursor for a while and then sleeps on a condition variable. Spinning pays only where every
 * thread has a processor of its own; with more threads than processors it would keep the awaited thread from running, so the
 * spin is cut to almost nothing.
 */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#endif

#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "error.h"

#define SPIN_NS 50000u          /* about what a sleep and a wake cost together */
#define SPIN_CROWDED_NS 1000u
#define PAUSES_PER_LOOK 32      /* the clock is read once in so many pauses */

#define NO_JOB 0xffffffu /* the stage of a cursor between jobs */

struct worker {
  struct cx_pool *pool;
  pthread_t handle;
  uint32_t thread;
};

struct cx_pool {
  CX_ALIGNED(64) atomic_ullong cursor; /* stage (24 bits), pieces (20), next piece (20) */
  CX_ALIGNED(64) atomic_uint done;     /* pieces of the stage that are done */
  struct cx_job job;                   /* written before the cursor leaves NO_JOB */

  /* those who sleep */
  CX_ALIGNED(64) atomic_uint sleepers;
  pthread_mutex_t lock;
  pthread_cond_t moved;
  atomic_int closing; /* workers are to end */

  /* fixed once made */
  uint32_t n_threads;
  uint64_t spin_ns;
  pid_t process;
  struct worker *workers; /* n_threads - 1 */
};

static uint64_t cursor_at(uint32_t stage, uint32_t n_pieces) { return (uint64_t)stage << 40 | (uint64_t)n_pieces << 20; }
static uint32_t stage_of(uint64_t cursor) { return (uint32_t)(cursor >> 40); }
static uint32_t pieces_of(uint64_t cursor) { return (uint32_t)(cursor >> 20) & 0xfffffu; }
static uint32_t next_of(uint64_t cursor) { return (uint32_t)cursor & 0xfffffu; } /* at most CX_MAX_THREADS past the pieces */

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- waiting and waking --------------------------------------------------------------------------------------------- */

static void publish(struct cx_pool *pool, uint64_t cursor) {
  atomic_store(&pool->cursor, cursor);
  /* A waiter counts itself before it looks at the cursor a last time, both in sequentially consistent order: either it is
   * seen here, or it sees the new value and does not sleep. */
  if (atomic_load(&pool->sleepers) == 0) return;
  pthread_mutex_lock(&pool->lock);
  pthread_cond_broadcast(&pool->moved);
  pthread_mutex_unlock(&pool->lock);
}

/* Whether there is something for this thread: a piece, or for the caller the end of the job, or for a worker its own. */
static int is_wanted(struct cx_pool *pool, uint32_t thread) {
  uint64_t cursor = atomic_load(&pool->cursor);
  if (next_of(cursor) < pieces_of(cursor)) return 1;
  return thread == 0 ? stage_of(cursor) == NO_JOB : atomic_load(&pool->closing);
}

static void wait_until_wanted(struct cx_pool *pool, uint32_t thread) {
  uint64_t begin = now_ns();
  do {
    for (int i = 0; i < PAUSES_PER_LOOK; i++) {
      if (is_wanted(pool, thread)) return;
      cx_pause();
    }
  } while (now_ns() - begin < pool->spin_ns);

  pthread_mutex_lock(&pool->lock);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!is_wanted(pool, thread)) pthread_cond_wait(&pool->moved, &pool->lock);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->lock);
}

/* --- a job ---------------------------------------------------------------------------------------------------------- */

/* Publishes the first stage from `stage` on that has pieces, or the end. Called by the one thread that ended the stage before. */
static void begin_stage(struct cx_pool *pool, uint32_t stage) {
  const struct cx_job *job = &pool->job;
  uint32_t n_pieces = 0;
  while (stage < job->n_stages && (n_pieces = job->pieces(job->context, stage)) == 0) stage++;
  atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
  int ended = stage == job->n_stages || n_pieces == CX_JOB_STOP;
  publish(pool, ended ? cursor_at(NO_JOB, 0) : cursor_at(stage, n_pieces));
}

/* Does pieces until there is none to take. */
static void do_pieces(struct cx_pool *pool, uint32_t thread) {
  for (;;) {
    uint64_t cursor = atomic_load_explicit(&pool->cursor, memory_order_relaxed);
    if (next_of(cursor) >= pieces_of(cursor)) return;
    cursor = atomic_fetch_add_explicit(&pool->cursor, 1, memory_order_acq_rel);
    uint32_t n_pieces = pieces_of(cursor), piece = next_of(cursor), stage = stage_of(cursor);
    if (piece >= n_pieces) return;
    pool->job.run(pool->job.context, stage, piece, thread);
    if (atomic_fetch_add_explicit(&pool->done, 1, memory_order_acq_rel) + 1 == n_pieces) begin_stage(pool, stage + 1);
  }
}

static void *work(void *argument) {
  struct worker *self = argument;
  while (!atomic_load(&self->pool->closing)) {
    wait_until_wanted(self->pool, self->thread);
    do_pieces(self->pool, self->thread);
  }
  return NULL;
}

int cx_pool_run(struct cx_pool *pool, const struct cx_job *job, struct cx_error *error) {
  if (pool->n_threads > 1 && pool->process != getpid())
    return cx_fail(error, CX_ETHREAD, "the model was loaded before this process was forked; load it after the fork");
  pool->job = *job;
  begin_stage(pool, 0);
  while (stage_of(atomic_load(&pool->cursor)) != NO_JOB) {
    do_pieces(pool, 0);
    wait_until_wanted(pool, 0);
  }
  return CX_OK;
}

/* --- making and freeing --------------------------------------------------------------------------------------------- */

/* Processors this process may run on. */
static uint32_t processors(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
#endif
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (uint32_t)online : 1;
}

/* Asks the first `started` workers to end and waits for them. */
static void end_workers(struct cx_pool *pool, uint32_t started) {
  atomic_store(&pool->closing, 1);
  publish(pool, cursor_at(NO_JOB, 0));
  for (uint32_t i = 0; i < started; i++) pthread_join(pool->workers[i].handle, NULL);
}

/* Starts every worker with asynchronous signals blocked; those of a fault stay open, so that a crash is still reported. */
static int start_workers(struct cx_pool *pool) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  sigset_t blocked, before;
  uint32_t started = 0;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&blocked, faults[i]);
  if (pthread_sigmask(SIG_SETMASK, &blocked, &before) != 0) return -1;
  while (started < pool->n_threads - 1) {
    struct worker *worker = &pool->workers[started];
    worker->pool = pool;
    worker->thread = started + 1;
    if (pthread_create(&worker->handle, NULL, work, worker) != 0) break;
    started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started == pool->n_threads - 1) return 0;
  end_workers(pool, started);
  return -1;
}

int cx_pool_new(uint32_t n_threads, struct cx_pool **out, struct cx_error *error) {
  *out = NULL;
  if (n_threads < 1 || n_threads > CX_MAX_THREADS)
    return cx_fail(error, CX_EINVAL, "%u threads: takes 1 to %d", n_threads, CX_MAX_THREADS);
  struct cx_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
  struct worker *workers = calloc(n_threads, sizeof *workers);
  if (pool == NULL || workers == NULL) {
    free(pool);
    free(workers);
    return cx_fail(error, CX_ENOMEM, "no memory for %u threads", n_threads);
  }
  pool->workers = workers;
  pool->n_threads = n_threads;
  pool->spin_ns = n_threads <= processors() ? SPIN_NS : SPIN_CROWDED_NS;
  pool->process = getpid();
  atomic_init(&pool->cursor, cursor_at(NO_JOB, 0));
  atomic_init(&pool->done, 0);
  atomic_init(&pool->sleepers, 0);
  atomic_init(&pool->closing, 0);
  if (pthread_mutex_init(&pool->lock, NULL) != 0) goto release;
  if (pthread_cond_init(&pool->moved, NULL) != 0) goto destroy_lock;
  if (start_workers(pool) == 0) {
    *out = pool;
    return CX_OK;
  }
  pthread_cond_destroy(&pool->moved);
destroy_lock:
  pthread_mutex_destroy(&pool->lock);
release:
  free(workers);
  free(pool);
  return cx_fail(error, CX_ETHREAD, "could not start %u threads", n_threads);
}

void cx_pool_free(struct cx_pool *pool) {
  if (pool == NULL) return;
  if (pool->process == getpid()) { /* a forked child has copies of the memory and none of the workers */
    end_workers(pool, pool->n_threads - 1);
    pthread_cond_destroy(&pool->moved);
    pthread_mutex_destroy(&pool->lock);
  }
  free(pool->workers);
  free(pool);
}
