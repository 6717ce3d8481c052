/* The machine's limits, measured as a model's steps run: by a row's kernels on a thread pool.
 *
 * A pass over the data is a stage of one job, in pieces that threads take as they come free. The first stage is not counted: it
 * brings the threads to life and the data into reach. Knows nothing of models.
 */
#include <time.h>

#include "base/error.h"
#include "base/threads.h"
#include "lane_cpu.h"

#define PIECES_PER_THREAD 16 /* of a pass that reads no memory: each some tens of microseconds or more */

struct job {
  const struct cx_limit_kernel *kernel;
  const uint8_t *data;
  uint64_t piece_bytes;
  int moves; /* a piece has its own data, rather than all the same */
  uint32_t n_pieces;
  double min_seconds, begin, end;
  uint32_t n_passes; /* that are counted */
  uint64_t checksums[CX_LIMIT_PIECES];
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Between two passes; the first to be counted begins at stage 1. */
static uint32_t count_pieces(void *context, uint32_t stage) {
  struct job *job = context;
  if (stage == 1) job->begin = now();
  if (stage > 1) {
    job->end = now();
    job->n_passes = stage - 1;
    if (job->end - job->begin >= job->min_seconds) return CX_JOB_STOP;
  }
  return job->n_pieces;
}

static void run_piece(void *context, uint32_t stage, uint32_t piece, uint32_t thread) {
  struct job *job = context;
  (void)stage, (void)thread;
  const uint8_t *data = job->data + (job->moves ? piece * job->piece_bytes : 0);
  job->checksums[piece] = job->kernel->run(data, job->piece_bytes);
}

static int measure(struct job *job, uint32_t n_threads, struct cx_limit_result *out, struct cx_error *error) {
  struct cx_pool *pool;
  int status = cx_pool_new(n_threads, &pool, error);
  if (status != CX_OK) return status;
  const struct cx_job passes = {CX_MAX_STAGES, count_pieces, run_piece, job};
  status = cx_pool_run(pool, &passes, error);
  cx_pool_free(pool);
  if (status != CX_OK) return status;
  out->seconds = job->end - job->begin;
  out->work = (double)job->kernel->work(job->piece_bytes) * job->n_pieces * job->n_passes;
  out->checksum = 0;
  for (uint32_t i = 0; i < job->n_pieces; i++) out->checksum += job->checksums[i];
  return CX_OK;
}

int cx_limit_measure(const char *row, uint32_t limit, uint32_t n_threads, double min_seconds, const void *data, uint64_t bytes,
                     struct cx_limit_result *out, struct cx_error *error) {
  const struct cx_row *found = cx_row_find(row, error);
  if (found == NULL) return CX_EINVAL;
  if (limit >= CX_LIMIT_COUNT) return cx_fail(error, CX_EINVAL, "limit %u: takes 0 to %d", limit, CX_LIMIT_COUNT - 1);
  if (!(min_seconds >= 0 && min_seconds <= 60)) return cx_fail(error, CX_EINVAL, "%g seconds: takes 0 to 60", min_seconds);
  struct job job = {.kernel = &found->limits[limit], .data = data, .min_seconds = min_seconds};
  if (limit == CX_LIMIT_READ) {
    if (bytes == 0 || bytes % (CX_LIMIT_PIECES * 256) != 0)
      return cx_fail(error, CX_EINVAL, "%llu bytes: takes a multiple of %d", (unsigned long long)bytes, CX_LIMIT_PIECES * 256);
    job.moves = 1;
    job.n_pieces = CX_LIMIT_PIECES;
    job.piece_bytes = bytes / CX_LIMIT_PIECES;
  } else {
    if (bytes < CX_LIMIT_PEAK_BYTES)
      return cx_fail(error, CX_EINVAL, "%llu bytes: takes %d or more", (unsigned long long)bytes, CX_LIMIT_PEAK_BYTES);
    const uint32_t wanted = PIECES_PER_THREAD * (n_threads < CX_LIMIT_PIECES ? n_threads : CX_LIMIT_PIECES);
    job.n_pieces = wanted < CX_LIMIT_PIECES ? wanted : CX_LIMIT_PIECES;
    job.piece_bytes = CX_LIMIT_PEAK_BYTES;
  }
  return measure(&job, n_threads, out, error);
}
