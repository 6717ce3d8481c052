/* A model: a checked plan with its memory and threads, and the walk over its ops.
 *
 * A step is a job of the thread pool: every op is a stage, its pieces are chunks of the op's items, and the picks are the last
 * stage. Threads take chunks as they come free, so a slow thread takes fewer. Items are outputs, never parts of a sum: how they
 * fall to threads cannot change a bit. Nothing is checked here but the step's own rows: plan.c has checked the ops.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/common.h"
#include "base/error.h"
#include "base/threads.h"
#include "cpu/lane_cpu.h"
#include "plan.h"

/* Chunks a thread would take of an op if all were equally fast: enough to even out, few enough to keep weight rows in line. */
#define CHUNKS_PER_THREAD 8

enum state { IDLE, RUNNING, CANCELLED };

struct cx_model {
  struct cx_plan plan;
  const struct cx_row *row;
  struct cx_pool *pool;
  uint32_t n_threads;
  uint8_t **bases;      /* n_arenas; the memory is the caller's */
  uint8_t *scratch;     /* n_threads pieces of scratch_bytes */
  uint64_t scratch_bytes;
  uint32_t *last_position; /* n_slots; used while a step's rows are checked */
  atomic_int state;        /* enum state */
};

/* One step in progress. */
struct job {
  struct cx_model *model;
  struct cx_run run;
  const struct cx_step *step;
  int stopped; /* written by the thread that begins a stage; read when the step is over */
};

static void pick(const struct job *job, uint32_t out, void *scratch) {
  const struct cx_plan_head *head = &job->model->plan.head;
  const float *logits = (const float *)cx_at(&job->run, head->logits) + (size_t)out * head->logits_stride;
  const struct cx_step *step = job->step;
  const int status = cx_sample(logits, head->vocab, &step->sampling[out], scratch, &step->picks[out]);
  step->pick_status[out] = (uint8_t)status;
  if (step->logprobs == NULL || !step->logprobs[out].wanted) return;
  struct cx_logprobs *logprobs = &step->logprobs[out];
  if (status == CX_PICK_OK) cx_score(logits, head->vocab, step->picks[out], scratch, logprobs);
  else logprobs->logprob = 0, logprobs->n_top = 0;
}

static const struct cx_kernel *kernel_of(const struct job *job, const struct cx_op_head *op) {
  return &job->model->row->kernels[op->op];
}

static uint32_t chunk_of(const struct job *job, uint32_t n_items) {
  uint32_t chunk = n_items / (job->model->n_threads * CHUNKS_PER_THREAD);
  return chunk != 0 ? chunk : 1;
}

static uint32_t count_chunks(void *context, uint32_t stage) {
  struct job *job = context;
  const struct cx_plan *plan = &job->model->plan;
  job->stopped = atomic_load_explicit(&job->model->state, memory_order_relaxed) == CANCELLED;
  if (job->stopped) return CX_JOB_STOP;
  if (stage == plan->head.n_ops) return job->step->sampling != NULL ? job->run.n_out : 0;
  const struct cx_op_head *op = cx_plan_op(plan, stage);
  uint32_t n_items = kernel_of(job, op)->items(op, &job->run), chunk = chunk_of(job, n_items);
  return n_items / chunk + (n_items % chunk != 0);
}

static void run_chunk(void *context, uint32_t stage, uint32_t piece, uint32_t thread) {
  struct job *job = context;
  const struct cx_plan *plan = &job->model->plan;
  void *scratch = job->model->scratch + thread * job->model->scratch_bytes;
  if (stage == plan->head.n_ops) {
    pick(job, piece, scratch);
    return;
  }
  const struct cx_op_head *op = cx_plan_op(plan, stage);
  const struct cx_kernel *kernel = kernel_of(job, op);
  uint32_t n_items = kernel->items(op, &job->run), chunk = chunk_of(job, n_items), begin = piece * chunk;
  kernel->run(op, &job->run, begin, n_items - begin < chunk ? n_items : begin + chunk, scratch);
}

/* --- the check of a step ------------------------------------------------------------------------------------------- */

static int check_rows(struct cx_model *model, const struct cx_step *step, struct cx_error *error) {
  const struct cx_plan_head *head = &model->plan.head;
  for (uint32_t i = 0; i < step->n_rows; i++) {
    if (step->tokens[i] >= head->vocab)
      return cx_fail(error, CX_EINVAL, "step: row %u: token %u: the vocabulary has %u", i, step->tokens[i], head->vocab);
    if (step->positions[i] >= head->context)
      return cx_fail(error, CX_EINVAL, "step: row %u: position %u: the context is %u", i, step->positions[i], head->context);
    if (step->slots[i] >= head->n_slots)
      return cx_fail(error, CX_EINVAL, "step: row %u: slot %u: there are %u", i, step->slots[i], head->n_slots);
    model->last_position[step->slots[i]] = UINT32_MAX; /* none yet: positions end below the context */
  }
  for (uint32_t i = 0; i < step->n_rows; i++) {
    uint32_t *last = &model->last_position[step->slots[i]];
    if (*last != UINT32_MAX && step->positions[i] <= *last)
      return cx_fail(error, CX_EINVAL, "step: row %u: position %u of slot %u follows position %u: takes ascending ones", i,
                     step->positions[i], step->slots[i], *last);
    *last = step->positions[i];
  }
  for (uint32_t i = 0; i < step->n_out; i++) {
    if (step->out_rows[i] >= step->n_rows || (i > 0 && step->out_rows[i] <= step->out_rows[i - 1]))
      return cx_fail(error, CX_EINVAL, "step: output %u: row %u: takes ascending rows below %u", i, step->out_rows[i],
                     step->n_rows);
  }
  return CX_OK;
}

static int check_tokens(const char *what, const uint32_t *tokens, uint32_t n, uint32_t vocab, struct cx_error *error) {
  if (n != 0 && tokens == NULL) return cx_fail(error, CX_EINVAL, "step: %u %s tokens without a list", n, what);
  for (uint32_t i = 0; i < n; i++)
    if (tokens[i] >= vocab) return cx_fail(error, CX_EINVAL, "step: %s token %u: the vocabulary has %u", what, tokens[i], vocab);
  return CX_OK;
}

static int allows_none(const uint32_t *allowed, uint32_t vocab) {
  for (uint32_t word = 0; word < vocab / 32; word++)
    if (allowed[word] != 0) return 0;
  return vocab % 32 == 0 || (allowed[vocab / 32] & ((1u << vocab % 32) - 1)) == 0;
}

static int check_adjust(const struct cx_adjust *adjust, uint32_t vocab, struct cx_error *error) {
  if (!isfinite(adjust->presence_penalty) || !isfinite(adjust->frequency_penalty))
    return cx_fail(error, CX_EINVAL, "step: penalties %f and %f: take finite numbers", (double)adjust->presence_penalty,
                   (double)adjust->frequency_penalty);
  if (adjust->n_bias != 0 && adjust->bias == NULL) return cx_fail(error, CX_EINVAL, "step: %u biases without a list", adjust->n_bias);
  for (uint32_t i = 0; i < adjust->n_bias; i++) {
    if (check_tokens("bias", &adjust->bias[i].token, 1, vocab, error)) return CX_EINVAL;
    if (!isfinite(adjust->bias[i].value))
      return cx_fail(error, CX_EINVAL, "step: bias %f: takes finite numbers", (double)adjust->bias[i].value);
  }
  if (check_tokens("generated", adjust->generated, adjust->n_generated, vocab, error)) return CX_EINVAL;
  if (adjust->allowed != NULL && allows_none(adjust->allowed, vocab))
    return cx_fail(error, CX_EINVAL, "step: a mask that allows no token");
  return CX_OK;
}

static int check_sampling(const struct cx_sampling *s, uint32_t vocab, struct cx_error *error) {
  if (!(s->temperature >= 0) || !isfinite(s->temperature))
    return cx_fail(error, CX_EINVAL, "step: temperature %f: takes 0 or more", (double)s->temperature);
  if (!(s->top_p > 0 && s->top_p <= 1))
    return cx_fail(error, CX_EINVAL, "step: top_p %f: takes above 0 and up to 1", (double)s->top_p);
  if (!(s->min_p >= 0 && s->min_p <= 1))
    return cx_fail(error, CX_EINVAL, "step: min_p %f: takes 0 to 1", (double)s->min_p);
  if (!(s->repetition_penalty > 0) || !isfinite(s->repetition_penalty))
    return cx_fail(error, CX_EINVAL, "step: repetition_penalty %f: takes above 0", (double)s->repetition_penalty);
  if (check_tokens("recent", s->recent, s->n_recent, vocab, error)) return CX_EINVAL;
  return s->adjust != NULL ? check_adjust(s->adjust, vocab, error) : CX_OK;
}

static int check_logprobs(const struct cx_logprobs *logprobs, uint32_t vocab, struct cx_error *error) {
  if (!logprobs->wanted) return CX_OK;
  if (logprobs->n_top > CX_MAX_TOP)
    return cx_fail(error, CX_EINVAL, "step: %u most likely tokens: takes 0 to %d", logprobs->n_top, CX_MAX_TOP);
  return logprobs->token == CX_PICKED_TOKEN ? CX_OK : check_tokens("scored", &logprobs->token, 1, vocab, error);
}

static int check_picks(const struct cx_step *step, uint32_t vocab, struct cx_error *error) {
  if (step->picks == NULL || step->pick_status == NULL)
    return cx_fail(error, CX_EINVAL, "step: sampling without room for the picks");
  for (uint32_t i = 0; i < step->n_out; i++) {
    if (check_sampling(&step->sampling[i], vocab, error)) return CX_EINVAL;
    if (step->logprobs != NULL && check_logprobs(&step->logprobs[i], vocab, error)) return CX_EINVAL;
  }
  return CX_OK;
}

static int check_step(struct cx_model *model, const struct cx_step *step, struct cx_error *error) {
  const struct cx_plan_head *head = &model->plan.head;
  if (step->n_rows < 1 || step->n_rows > head->max_rows)
    return cx_fail(error, CX_EINVAL, "step: %u rows: takes 1 to %u", step->n_rows, head->max_rows);
  if (step->n_out > head->max_out)
    return cx_fail(error, CX_EINVAL, "step: %u output rows: takes 0 to %u", step->n_out, head->max_out);
  if (step->tokens == NULL || step->positions == NULL || step->slots == NULL || (step->n_out != 0 && step->out_rows == NULL))
    return cx_fail(error, CX_EINVAL, "step: tokens, positions, slots and out_rows must all be given");
  if (check_rows(model, step, error)) return CX_EINVAL;
  if (step->sampling == NULL || step->n_out == 0) return CX_OK;
  return check_picks(step, head->vocab, error);
}

int cx_model_step(struct cx_model *model, const struct cx_step *step, struct cx_error *error) {
  if (check_step(model, step, error)) return CX_EINVAL;
  struct job job = {
      .model = model,
      .step = step,
      .run = {.arenas = model->bases, .tokens = step->tokens, .positions = step->positions, .slots = step->slots,
              .out_rows = step->out_rows, .n_rows = step->n_rows, .n_out = step->n_out},
  };
  const struct cx_job stages = {model->plan.head.n_ops + 1, count_chunks, run_chunk, &job};
  atomic_store(&model->state, RUNNING);
  int status = cx_pool_run(model->pool, &stages, error);
  atomic_store(&model->state, IDLE);
  if (status == CX_OK && job.stopped) return cx_fail(error, CX_ECANCELLED, "the step was cancelled");
  return status;
}

void cx_model_cancel(struct cx_model *model) {
  int running = RUNNING;
  atomic_compare_exchange_strong(&model->state, &running, CANCELLED);
}

/* --- making and freeing -------------------------------------------------------------------------------------------- */

/* Refuses an op that the row has no kernel for; *scratch_bytes is the most any op or the sampler asks for, in whole lines. */
static int fit_kernels(const struct cx_model *model, uint64_t *scratch_bytes, struct cx_error *error) {
  uint64_t most = cx_sample_scratch(model->plan.head.vocab);
  for (uint32_t i = 0; i < model->plan.head.n_ops; i++) {
    const struct cx_op_head *op = cx_plan_op(&model->plan, i);
    const struct cx_kernel *kernel = &model->row->kernels[op->op];
    if (kernel->run == NULL)
      return cx_fail(error, CX_EINVAL, "plan: op %u (%s): row %s has no kernel for it", i, cx_op_name(op->op), model->row->name);
    uint64_t bytes = kernel->scratch_bytes != NULL ? kernel->scratch_bytes(op, model->plan.head.max_rows) : 0;
    if (bytes > most) most = bytes;
  }
  if (most > SIZE_MAX / 2 / CX_MAX_THREADS) return cx_fail(error, CX_ENOMEM, "the plan needs too much scratch memory");
  *scratch_bytes = (most + 63) / 64 * 64;
  return CX_OK;
}

static int fill(struct cx_model *model, const struct cx_arena *arenas, uint32_t n_threads, struct cx_error *error) {
  uint32_t n_arenas = model->plan.head.n_arenas;
  int status = fit_kernels(model, &model->scratch_bytes, error);
  if (status) return status;
  status = cx_pool_new(n_threads, &model->pool, error);
  if (status) return status;
  model->n_threads = n_threads;
  model->bases = calloc(n_arenas, sizeof *model->bases);
  model->last_position = calloc(model->plan.head.n_slots, sizeof *model->last_position);
  model->scratch = aligned_alloc(64, (size_t)model->scratch_bytes * n_threads);
  if (model->bases == NULL || model->last_position == NULL || model->scratch == NULL)
    return cx_fail(error, CX_ENOMEM, "no memory for a model of %u threads", n_threads);
  for (uint32_t i = CX_ARENA_ACTIVATIONS; i < n_arenas; i++) model->bases[i] = arenas[i].base;
  atomic_init(&model->state, IDLE);
  return CX_OK;
}

int cx_model_new(const void *plan, uint64_t plan_bytes, const struct cx_arena *arenas, uint32_t n_arenas,
                 const struct cx_options *options, struct cx_model **out, struct cx_error *error) {
  *out = NULL;
  struct cx_model *model = calloc(1, sizeof *model);
  if (model == NULL) return cx_fail(error, CX_ENOMEM, "no memory for a model");
  int status = cx_plan_open(plan, plan_bytes, arenas, n_arenas, &model->plan, error);
  if (status == CX_OK) {
    model->row = cx_row_find(options->row, error);
    status = model->row != NULL ? fill(model, arenas, options->n_threads, error) : CX_EINVAL;
  }
  if (status == CX_OK) *out = model;
  else cx_model_free(model);
  return status;
}

void cx_model_free(struct cx_model *model) {
  if (model == NULL) return;
  cx_pool_free(model->pool);
  cx_plan_close(&model->plan);
  free(model->bases);
  free(model->last_position);
  free(model->scratch);
  free(model);
}
