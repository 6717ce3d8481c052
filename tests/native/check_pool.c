/* The thread pool alone: every piece of every stage is done once, stages order memory, idle workers sleep, signals stay away.
 *
 * Built plain and with ThreadSanitizer by test_pool.py; argv: number of threads, number of runs. Prints the first failure
 * and exits 1. Plain (non-atomic) memory is passed between stages on purpose: the sanitizer judges the order by it.
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

#define STAGES 40
#define MOST 64

struct ring {
  struct cx_pool *pool;
  uint32_t n_threads, n_pieces;
  uint64_t values[2][MOST]; /* by stage parity: each piece reads its neighbour's last value and writes its own next */
  uint32_t counted;         /* calls of pieces() */
  uint32_t stop_at;         /* the stage before which the job ends */
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

/* Every third stage has no pieces: it is passed over. */
static uint32_t pieces(void *context, uint32_t stage) {
  struct ring *ring = context;
  ring->counted++;
  if (stage == ring->stop_at) return CX_JOB_STOP;
  return stage % 3 == 2 ? 0 : ring->n_pieces;
}

static void piece(void *context, uint32_t stage, uint32_t index, uint32_t thread) {
  struct ring *ring = context;
  uint32_t turn = stage - stage / 3; /* among the stages that have pieces */
  sigset_t mask;
  if (index >= ring->n_pieces || thread >= ring->n_threads) fail("a piece or a thread that there is not");
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  if (sigismember(&mask, SIGINT) != (thread != 0)) fail("workers must block SIGINT and the caller must not");
  ring->values[(turn + 1) & 1][index] = ring->values[turn & 1][(index + 1) % ring->n_pieces] + 1;
}

static int run(struct ring *ring, uint32_t n_stages, struct cx_error *error) {
  const struct cx_job job = {n_stages, pieces, piece, ring};
  ring->counted = 0;
  return cx_pool_run(ring->pool, &job, error);
}

static void check_runs(struct ring *ring, uint32_t n_runs) {
  for (uint32_t i = 1; i <= n_runs; i++) {
    ring->n_pieces = 1 + i * 7 % MOST;
    ring->stop_at = i % 4 == 3 ? i % STAGES : STAGES;
    for (uint32_t j = 0; j < MOST; j++) ring->values[0][j] = 0;
    if (run(ring, STAGES, NULL) != CX_OK) fail("a run failed");
    uint32_t turns = ring->stop_at - ring->stop_at / 3;
    for (uint32_t j = 0; j < ring->n_pieces; j++)
      if (ring->values[turns & 1][j] != turns) fail("a stage began early, or a piece was not done exactly once");
    if (ring->counted != ring->stop_at + (ring->stop_at < STAGES)) fail("pieces() is called once a stage");
  }
  if (run(ring, 0, NULL) != CX_OK) fail("a job without stages is done at once");
}

static void check_idle(struct ring *ring) {
  struct timespec pause = {0, 300000000};
  ring->stop_at = STAGES;
  if (run(ring, STAGES, NULL) != CX_OK) fail("a run failed");
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
    int refused = run(ring, STAGES, &error) == (ring->n_threads == 1 ? CX_OK : CX_ETHREAD);
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
