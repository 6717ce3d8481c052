/* The pool of threads.h, on pthreads and C11 atomics; Linux and macOS.
 *
 * Everything waits at a gate: a counter that moves on when it opens. A waiter spins on the counter for a while and then
 * sleeps on a condition variable. There are two gates: one starts a run, one is the barrier inside it (and ends the run).
 * Spinning pays only where every thread has a processor of its own; with more threads than processors it would keep the
 * awaited thread from running, so the spin is cut to almost nothing.
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

struct gate {
  CX_ALIGNED(64) atomic_uint opened; /* how often, modulo 2^32 */
  atomic_uint sleepers;
  pthread_mutex_t lock;
  pthread_cond_t moved;
};

struct worker {
  struct cx_pool *pool;
  pthread_t handle;
  uint32_t thread;
};

struct cx_pool {
  struct gate start, barrier;
  CX_ALIGNED(64) atomic_uint arrived; /* threads at the barrier */

  /* written by the caller before the start gate opens, read by workers after */
  cx_pool_function *function; /* NULL tells workers to end */
  void *context;

  /* fixed once made */
  uint32_t n_threads;
  uint64_t spin_ns;
  pid_t process;
  struct worker *workers; /* n_threads - 1 */
};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int gate_init(struct gate *gate) {
  atomic_init(&gate->opened, 0);
  atomic_init(&gate->sleepers, 0);
  if (pthread_mutex_init(&gate->lock, NULL) != 0) return -1;
  if (pthread_cond_init(&gate->moved, NULL) == 0) return 0;
  pthread_mutex_destroy(&gate->lock);
  return -1;
}

static void gate_destroy(struct gate *gate) {
  pthread_cond_destroy(&gate->moved);
  pthread_mutex_destroy(&gate->lock);
}

static void gate_open(struct gate *gate) {
  atomic_fetch_add(&gate->opened, 1);
  /* A waiter counts itself before it looks at `opened` a last time, both in sequentially consistent order: either it is
   * seen here, or it sees the new value and does not sleep. */
  if (atomic_load(&gate->sleepers) == 0) return;
  pthread_mutex_lock(&gate->lock);
  pthread_cond_broadcast(&gate->moved);
  pthread_mutex_unlock(&gate->lock);
}

/* Returns once the gate has moved on from `seen`. */
static void gate_wait(struct gate *gate, unsigned seen, uint64_t spin_ns) {
  uint64_t begin = now_ns();
  do {
    for (int i = 0; i < PAUSES_PER_LOOK; i++) {
      if (atomic_load_explicit(&gate->opened, memory_order_acquire) != seen) return;
      cx_pause();
    }
  } while (now_ns() - begin < spin_ns);

  pthread_mutex_lock(&gate->lock);
  atomic_fetch_add(&gate->sleepers, 1);
  while (atomic_load(&gate->opened) == seen) pthread_cond_wait(&gate->moved, &gate->lock);
  atomic_fetch_sub(&gate->sleepers, 1);
  pthread_mutex_unlock(&gate->lock);
}

void cx_pool_barrier(struct cx_pool *pool, void (*action)(void *context), void *context) {
  unsigned seen = atomic_load_explicit(&pool->barrier.opened, memory_order_relaxed); /* cannot move before we arrive */
  if (atomic_fetch_add(&pool->arrived, 1) + 1 != pool->n_threads) {
    gate_wait(&pool->barrier, seen, pool->spin_ns);
    return;
  }
  atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed); /* before anyone can arrive again */
  if (action != NULL) action(context);
  if (pool->n_threads > 1) gate_open(&pool->barrier);
}

static void *work(void *argument) {
  struct worker *self = argument;
  struct cx_pool *pool = self->pool;
  for (unsigned seen = 0;; seen++) {
    gate_wait(&pool->start, seen, pool->spin_ns);
    if (pool->function == NULL) return NULL;
    pool->function(pool->context, self->thread);
    cx_pool_barrier(pool, NULL, NULL);
  }
}

int cx_pool_run(struct cx_pool *pool, cx_pool_function *function, void *context, struct cx_error *error) {
  if (pool->n_threads == 1) {
    function(context, 0);
    return CX_OK;
  }
  if (pool->process != getpid())
    return cx_fail(error, CX_ETHREAD, "the model was loaded before this process was forked; load it after the fork");
  pool->function = function;
  pool->context = context;
  gate_open(&pool->start);
  function(context, 0);
  cx_pool_barrier(pool, NULL, NULL);
  return CX_OK;
}

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
  pool->function = NULL;
  gate_open(&pool->start);
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
  atomic_init(&pool->arrived, 0);
  int failed = gate_init(&pool->start);
  if (failed) goto release;
  failed = gate_init(&pool->barrier);
  if (failed) goto destroy_start;
  failed = start_workers(pool);
  if (!failed) {
    *out = pool;
    return CX_OK;
  }
  gate_destroy(&pool->barrier);
destroy_start:
  gate_destroy(&pool->start);
release:
  free(workers);
  free(pool);
  return cx_fail(error, CX_ETHREAD, "could not start %u threads", n_threads);
}

void cx_pool_free(struct cx_pool *pool) {
  if (pool == NULL) return;
  if (pool->process == getpid()) { /* a forked child has copies of the memory and none of the workers */
    end_workers(pool, pool->n_threads - 1);
    gate_destroy(&pool->barrier);
    gate_destroy(&pool->start);
  }
  free(pool->workers);
  free(pool);
}
