/* The thread pool alone: every thread runs once a run, barriers order memory, idle workers sleep, signals stay away.
 *
 * Built plain and with ThreadSanitizer by test_pool.py; argv: number of threads, number of runs. Prints the first failure
 * and exits 1. Plain (non-atomic) memory is passed between threads on purpose: the sanitizer judges the barrier by it.
 */
#if defined(__linux__)
#define _GNU_SOURCE
#endif

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/threads.h"

#define ROUNDS 40
#define MOST 64

struct ring {
  struct cx_pool *pool;
  uint32_t n_threads;
  uint64_t values[2][MOST]; /* by round parity: each thread reads its neighbour's last value and writes its own next */
  uint32_t ran[MOST];
  int blocked[MOST];
  uint64_t meetings;
};

static void fail(const char *what) {
  printf("check_pool: %s\n", what);
  exit(1);
}

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void met(void *context) {
  ((struct ring *)context)->meetings++;
}

static void turn(void *context, uint32_t thread) {
  struct ring *ring = context;
  sigset_t mask;
  ring->ran[thread]++;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  ring->blocked[thread] = sigismember(&mask, SIGINT);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    const uint64_t *old = ring->values[round & 1];
    ring->values[(round + 1) & 1][thread] = old[(thread + 1) % ring->n_threads] + 1;
    cx_pool_barrier(ring->pool, met, ring);
    if (ring->meetings % ROUNDS != (round + 1) % ROUNDS) fail("a barrier's action ran late or more than once");
  }
}

static void check_runs(struct ring *ring, uint32_t n_runs) {
  for (uint32_t run = 1; run <= n_runs; run++) {
    if (cx_pool_run(ring->pool, turn, ring, NULL) != CX_OK) fail("a run failed");
    for (uint32_t i = 0; i < ring->n_threads; i++) {
      if (ring->ran[i] != run) fail("a thread did not run exactly once");
      if (ring->values[ROUNDS & 1][i] != (uint64_t)run * ROUNDS) fail("a barrier let a thread through early");
      if (ring->blocked[i] != (i != 0)) fail("workers must block SIGINT and the caller must not");
    }
  }
}

static void check_idle(struct ring *ring) {
  struct timespec pause = {0, 300000000};
  if (cx_pool_run(ring->pool, turn, ring, NULL) != CX_OK) fail("a run failed");
  double before = cpu_seconds();
  nanosleep(&pause, NULL);
  double used = cpu_seconds() - before;
  if (used > 0.02) fail("an idle pool used more than 20 ms of processor time in 300 ms");
}

static void check_fork(struct ring *ring) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    struct cx_error error = {0};
    alarm(20);
    int refused = cx_pool_run(ring->pool, turn, ring, &error) == (ring->n_threads == 1 ? CX_OK : CX_ETHREAD);
    cx_pool_free(ring->pool);
    _exit(refused ? 0 : 1);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("a forked child must be refused and able to free");
}

int main(int argc, char **argv) {
  static struct ring ring;
  struct cx_error error;
  if (argc != 3) fail("takes: threads runs");
  ring.n_threads = (uint32_t)atoi(argv[1]);
  if (cx_pool_new(0, &ring.pool, &error) != CX_EINVAL || ring.pool != NULL) fail("0 threads must be refused");
  if (cx_pool_new(CX_MAX_THREADS + 1, &ring.pool, &error) != CX_EINVAL) fail("too many threads must be refused");
  if (cx_pool_new(ring.n_threads, &ring.pool, &error) != CX_OK) fail(error.message);
  check_runs(&ring, (uint32_t)atoi(argv[2]));
  check_fork(&ring);
  check_idle(&ring);
  cx_pool_free(ring.pool);
  cx_pool_free(NULL);
  printf("check_pool: %u threads: ok\n", ring.n_threads);
  return 0;
}
