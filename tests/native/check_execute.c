/* The executor with a row of its own whose kernels count what they are asked to do: no numerics, only who runs what and when.
 *
 * Built plain and with sanitizers by test_pool.py; argv: number of threads. Stands in for cpu/lane_cpu.c. The plan is
 * embed -> rms_norm -> select_rows, where embed writes token + column, the norm adds 1 and can hold a step until it is
 * cancelled, and select copies. Prints the first failure and exits 1.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cpu/lane_cpu.h"

#define DIM 32
#define VOCAB 32
#define MAX_ROWS 50
#define N_OPS 3

static atomic_int hold; /* 1: the norm's first item waits for 2 */

static void fail(const char *what) {
  printf("check_execute: %s\n", what);
  exit(1);
}

static float *row_of(const struct cx_run *run, struct cx_ref ref, uint32_t stride, uint32_t row) {
  return (float *)cx_at(run, ref) + (size_t)row * stride;
}

static uint32_t items(const void *op, const struct cx_run *run) {
  return cx_run_rows(op, run);
}

static void embed(const void *record, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_embed *op = record;
  memset(scratch, 1, 4096);
  for (uint32_t r = begin; r < end; r++)
    for (uint32_t i = 0; i < op->dim; i++) row_of(run, op->y, op->y_stride, r)[i] = (float)((run->tokens[r] + i) % VOCAB);
}

static void norm(const void *record, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_rms_norm *op = record;
  (void)scratch;
  int armed = 1;
  if (atomic_load(&hold) == 1 && begin == 0) {
    atomic_compare_exchange_strong(&hold, &armed, 3);
    while (atomic_load(&hold) != 2) sched_yield();
  }
  for (uint32_t r = begin; r < end; r++)
    for (uint32_t i = 0; i < op->dim; i++)
      row_of(run, op->y, op->y_stride, r)[i] = row_of(run, op->x, op->x_stride, r)[i] + 1;
}

static void select_rows(const void *record, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_select_rows *op = record;
  (void)scratch;
  for (uint32_t r = begin; r < end; r++)
    memcpy(row_of(run, op->y, op->y_stride, r), row_of(run, op->x, op->x_stride, run->out_rows[r]), op->dim * sizeof(float));
}

static uint64_t scratch_bytes(const void *op, uint32_t max_rows) {
  (void)op;
  (void)max_rows;
  return 4096;
}

static const struct cx_row counting_row = {
    .name = "counting",
    .kernels = {[CX_OP_EMBED] = {items, embed, scratch_bytes},
                [CX_OP_RMS_NORM] = {items, norm, NULL},
                [CX_OP_SELECT_ROWS] = {items, select_rows, NULL}},
};

const struct cx_row *cx_row_find(const char *name, struct cx_error *error) {
  (void)name;
  (void)error;
  return &counting_row;
}

/* --- a model ------------------------------------------------------------------------------------------------------- */

struct fixture {
  _Alignas(64) uint8_t activations[(2 * MAX_ROWS + MAX_ROWS) * DIM * 4];
  _Alignas(64) uint8_t weights[VOCAB * DIM * 4 + DIM * 4];
  _Alignas(64) uint8_t image[(N_OPS + 1) * CX_OP_BYTES];
  struct cx_arena arenas[4];
  struct cx_model *model;
};

static struct cx_ref activation(uint32_t index) {
  return (struct cx_ref){.arena = CX_ARENA_ACTIVATIONS, .offset = (uint64_t)index * MAX_ROWS * DIM * 4};
}

static struct cx_ref weight(uint64_t offset) {
  return (struct cx_ref){.arena = CX_ARENA_WEIGHTS, .offset = offset};
}

static void write_image(struct fixture *f) {
  struct cx_plan_head head = {.magic = CX_PLAN_MAGIC, .version = CX_PLAN_VERSION, .n_ops = N_OPS, .n_arenas = 4,
                              .max_rows = MAX_ROWS, .max_out = MAX_ROWS, .vocab = VOCAB, .context = 100, .n_slots = 3,
                              .logits_stride = DIM, .logits = activation(2)};
  struct cx_op_embed first = {.head = {.op = CX_OP_EMBED}, .dim = DIM, .vocab = VOCAB, .y_stride = DIM, .table = weight(0),
                              .y = activation(0)};
  struct cx_op_rms_norm second = {.head = {.op = CX_OP_RMS_NORM}, .dim = DIM, .x_stride = DIM, .y_stride = DIM,
                                  .x = activation(0), .weight = weight(VOCAB * DIM * 4), .y = activation(1)};
  struct cx_op_select_rows third = {.head = {.op = CX_OP_SELECT_ROWS, .rows = CX_ROWS_OUTPUT}, .dim = DIM,
                                    .x_stride = DIM, .y_stride = DIM, .x = activation(1), .y = activation(2)};
  memcpy(f->image, &head, sizeof head);
  memcpy(f->image + CX_OP_BYTES, &first, sizeof first);
  memcpy(f->image + 2 * CX_OP_BYTES, &second, sizeof second);
  memcpy(f->image + 3 * CX_OP_BYTES, &third, sizeof third);
}

static struct fixture *make(uint32_t n_threads) {
  struct fixture *f = aligned_alloc(64, (sizeof *f + 63) / 64 * 64);
  if (f == NULL) fail("no memory");
  memset(f, 0, sizeof *f);
  write_image(f);
  f->arenas[CX_ARENA_ACTIVATIONS] = (struct cx_arena){f->activations, sizeof f->activations};
  f->arenas[CX_ARENA_WEIGHTS] = (struct cx_arena){f->weights, sizeof f->weights};
  struct cx_options options = {.n_threads = n_threads};
  struct cx_error error = {0};
  if (cx_model_new(f->image, sizeof f->image, f->arenas, 4, &options, &f->model, &error) != CX_OK) fail(error.message);
  return f;
}

static void drop(struct fixture *f) {
  cx_model_free(f->model);
  free(f);
}

/* Steps n_rows rows that all ask for a pick; the largest logit of row r is token + 1 + column == VOCAB - 1 + 1. */
static int step(struct fixture *f, uint32_t n_rows, struct cx_error *error) {
  uint32_t tokens[MAX_ROWS], positions[MAX_ROWS], slots[MAX_ROWS], out_rows[MAX_ROWS], picks[MAX_ROWS];
  uint8_t status[MAX_ROWS];
  struct cx_sampling sampling[MAX_ROWS];
  struct cx_logprobs logprobs[MAX_ROWS];
  for (uint32_t i = 0; i < n_rows; i++) {
    tokens[i] = (7 * i + 3) % VOCAB;
    positions[i] = i;
    slots[i] = i % 3;
    out_rows[i] = i;
    sampling[i] = (struct cx_sampling){.top_p = 1, .repetition_penalty = 1};
    logprobs[i] = (struct cx_logprobs){.wanted = i % 2, .n_top = 2, .token = CX_PICKED_TOKEN};
  }
  struct cx_step asked = {.n_rows = n_rows, .n_out = n_rows, .tokens = tokens, .positions = positions, .slots = slots,
                          .out_rows = out_rows, .sampling = sampling, .picks = picks, .pick_status = status, .logprobs = logprobs};
  int code = cx_model_step(f->model, &asked, error);
  for (uint32_t i = 0; i < n_rows && code == CX_OK; i++) {
    const float *logits = (const float *)(f->activations + activation(2).offset) + (size_t)i * DIM;
    if (logits[0] != (float)tokens[i] + 1) fail("a row's logits are another row's");
    if (status[i] != CX_PICK_OK || picks[i] != (VOCAB - 1 - tokens[i]) % VOCAB) fail("a row's pick is wrong");
    const struct cx_logprobs *scores = &logprobs[i];
    if (i % 2 == 0 ? scores->token != CX_PICKED_TOKEN
                   : scores->token != picks[i] || scores->top_tokens[0] != picks[i] || scores->logprob != scores->top_logprobs[0])
      fail("a row's log-probabilities are wrong");
  }
  return code;
}

static void check_steps(uint32_t n_threads) {
  struct fixture *f = make(n_threads);
  for (uint32_t repeat = 0; repeat < 20; repeat++)
    for (uint32_t n_rows = 1; n_rows <= MAX_ROWS; n_rows += 7) {
      memset(f->activations, 0, sizeof f->activations);
      if (step(f, n_rows, NULL) != CX_OK) fail("a step failed");
    }
  drop(f);
}

static void *cancel_when_held(void *model) {
  while (atomic_load(&hold) != 3) sched_yield();
  cx_model_cancel(model);
  atomic_store(&hold, 2);
  return NULL;
}

static void check_cancel(uint32_t n_threads) {
  struct fixture *f = make(n_threads);
  struct cx_error error = {0};
  pthread_t other;
  cx_model_cancel(f->model); /* no step runs: no effect */
  if (step(f, 5, &error) != CX_OK) fail("a cancel before a step must not end it");
  atomic_store(&hold, 1);
  memset(f->activations, 0, sizeof f->activations);
  if (pthread_create(&other, NULL, cancel_when_held, f->model) != 0) fail("no thread");
  if (step(f, 5, &error) != CX_ECANCELLED) fail("a cancelled step must say so");
  pthread_join(other, NULL);
  if (strcmp(error.message, "the step was cancelled") != 0) fail("the message of a cancelled step");
  if (*(const float *)(f->activations + activation(2).offset) != 0) fail("an op ran after the cancel");
  atomic_store(&hold, 0);
  if (step(f, 5, &error) != CX_OK) fail("a step after a cancelled one");
  drop(f);
}

static void *many_steps(void *fixture) {
  for (uint32_t i = 0; i < 200; i++)
    if (step(fixture, 1 + i % MAX_ROWS, NULL) != CX_OK) fail("a step failed beside another model's");
  return NULL;
}

static void check_two_models(uint32_t n_threads) {
  struct fixture *a = make(n_threads), *b = make(n_threads);
  pthread_t other;
  if (pthread_create(&other, NULL, many_steps, b) != 0) fail("no thread");
  many_steps(a);
  pthread_join(other, NULL);
  drop(a);
  drop(b);
}

static void check_missing_kernel(void) {
  struct fixture *f = make(1);
  const struct cx_op_linear op = {.head = {.op = CX_OP_LINEAR}, .k = DIM, .n_parts = 1, .x_stride = DIM, .x = activation(1),
                                  .parts = {{.weight = weight(0), .y = activation(0), .n = VOCAB, .y_stride = DIM}}};
  struct cx_options options = {.n_threads = 1};
  struct cx_error error = {0};
  struct cx_model *model;
  memcpy(f->image + 2 * CX_OP_BYTES, &op, sizeof op);
  if (cx_model_new(f->image, sizeof f->image, f->arenas, 4, &options, &model, &error) != CX_EINVAL || model != NULL ||
      strcmp(error.message, "plan: op 1 (linear): row counting has no kernel for it") != 0)
    fail("an op without a kernel must be refused");
  drop(f);
}

int main(int argc, char **argv) {
  if (argc != 2) fail("takes: threads");
  uint32_t n_threads = (uint32_t)atoi(argv[1]);
  check_steps(n_threads);
  check_cancel(n_threads);
  check_two_models(n_threads);
  check_missing_kernel();
  printf("check_execute: %u threads: ok\n", n_threads);
  return 0;
}
