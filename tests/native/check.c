/* The means of check.h: guard pages, the generator, and the runs that must all agree. Linux and macOS. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *current_row = "", *current_check = "";
static char current_case[200];
static unsigned case_count;
static uint64_t first_seed, state;

void begin_check(const char *row, const char *check, uint64_t seed) {
  current_row = row;
  current_check = check;
  first_seed = state = seed;
  case_count = 0;
  current_case[0] = '\0';
}

void begin_case(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(current_case, sizeof current_case, format, arguments);
  va_end(arguments);
  case_count++;
}

unsigned n_cases(void) { return case_count; }

void fail(const char *format, ...) {
  va_list arguments;
  fflush(stdout);
  fprintf(stderr, "check_kernels: %s %s: %s: ", current_row, current_check, current_case);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, " (--seed %llu)\n", (unsigned long long)first_seed);
  exit(1);
}

/* --- numbers ------------------------------------------------------------------------------------------------------- */

uint64_t random_bits(void) {
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint32_t random_below(uint32_t n) { return (uint32_t)(random_bits() % n); }

double random_normal(void) {
  double sum = 0; /* the sum of 12 uniforms: near enough, and never beyond 6 */
  for (int i = 0; i < 12; i++) sum += (double)(random_bits() >> 11) * 0x1p-53;
  return sum - 6;
}

void fill_normal(float *x, size_t n, double spread) {
  for (size_t i = 0; i < n; i++) x[i] = (float)(random_normal() * spread);
}

void fill_bytes(void *p, size_t n) {
  for (size_t i = 0; i < n; i++) ((uint8_t *)p)[i] = (uint8_t)random_bits();
}

/* Where the high bytes of a block's f16 scales are, for the types that do not begin with them. */
static const struct {
  const char *name;
  uint32_t at[2];
} scale_bytes[] = {{"q2_k", {81, 83}}, {"q3_k", {109, 109}}, {"q6_k", {209, 209}}, {NULL, {1, 3}}};

/* Random bits as a scale may be inf or NaN; with the top bit of the exponent cleared they are below 2. Where a type has one scale only,
 * its second byte here is some code or other. */
void fill_blocks(const struct cx_quant_info *type, uint8_t *blocks, size_t bytes) {
  const int is_mxfp4 = strcmp(type->name, "mxfp4") == 0;
  uint32_t found = 0;
  while (scale_bytes[found].name && strcmp(scale_bytes[found].name, type->name) != 0) found++;
  fill_bytes(blocks, bytes);
  for (uint8_t *block = blocks; block < blocks + bytes; block += type->block_bytes) {
    if (is_mxfp4) block[0] = (uint8_t)(118 + block[0] % 16);
    else if (type->block_elements == 1) block[type->block_bytes - 1] &= 0xbf;
    else block[scale_bytes[found].at[0]] &= 0xbf, block[scale_bytes[found].at[1]] &= 0xbf;
  }
}

float as_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t below = bits & 0xffffu, odd = bits >> 16 & 1u;
  bits = (bits & 0xffff0000u) + (below > 0x8000u || (below == 0x8000u && odd) ? 0x10000u : 0);
  memcpy(&x, &bits, sizeof x);
  return x;
}

float bf16_value(const void *p) {
  uint16_t top;
  memcpy(&top, p, sizeof top);
  const uint32_t bits = (uint32_t)top << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

void expect_near(const char *what, size_t index, double got, double want, double allowed) {
  if (fabs(got - want) <= allowed) return;
  fail("%s %zu: got %.9g, want %.9g, off by %.3g where %.3g is allowed", what, index, got, want, fabs(got - want), allowed);
}

uint32_t stride_for(uint32_t width) { return (width + 16) / 16 * 16; }

/* --- scenes -------------------------------------------------------------------------------------------------------- */

void scene_begin(struct scene *scene, enum placement placement, uint32_t n_rows, uint32_t n_out) {
  memset(scene, 0, sizeof *scene);
  scene->placement = placement;
  scene->n_tensors = 1;
  scene->run = (struct cx_run){
      .arenas = scene->arenas, .tokens = scene->tokens, .positions = scene->positions, .slots = scene->slots,
      .out_rows = scene->out_rows, .n_rows = n_rows, .n_out = n_out,
  };
}

void scene_end(struct scene *scene) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) munmap(scene->tensors[i].map, scene->tensors[i].map_bytes);
}

struct cx_ref add_bytes(struct scene *scene, uint32_t type, size_t bytes, int written) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
  const uint32_t i = scene->n_tensors++;
  if (i >= MAX_TENSORS) fail("too many tensors");
  struct tensor *tensor = &scene->tensors[i];
  tensor->map_bytes = inner + 2 * page;
  tensor->map = mmap(NULL, tensor->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (tensor->map == MAP_FAILED || mprotect(tensor->map + page, inner, PROT_READ | PROT_WRITE)) fail("no memory");
  tensor->base = tensor->map + page + (scene->placement == AT_END ? inner - bytes : 0);
  tensor->bytes = tensor->row_bytes = tensor->row_width = bytes;
  tensor->written = written;
  memset(tensor->base, 0xff, bytes);
  scene->arenas[i] = tensor->base;
  return (struct cx_ref){.arena = i, .type = type, .offset = 0};
}

struct cx_ref add_rows(struct scene *scene, uint32_t n_rows, uint32_t width, uint32_t stride, int written) {
  const struct cx_ref ref = add_bytes(scene, 0, ((size_t)(n_rows - 1) * stride + width) * sizeof(float), written);
  scene->tensors[ref.arena].row_bytes = stride * sizeof(float);
  scene->tensors[ref.arena].row_width = width * sizeof(float);
  return ref;
}

struct cx_ref add_normal(struct scene *scene, uint32_t n_rows, uint32_t width, uint32_t stride, double spread, int written) {
  const struct cx_ref ref = add_rows(scene, n_rows, width, stride, written);
  for (uint32_t row = 0; row < n_rows; row++) fill_normal(row_at(scene, ref, row, stride), width, spread);
  return ref;
}

void *at(const struct scene *scene, struct cx_ref ref) { return scene->arenas[ref.arena] + ref.offset; }

float *row_at(const struct scene *scene, struct cx_ref ref, uint32_t row, uint32_t stride) {
  return (float *)at(scene, ref) + (size_t)row * stride;
}

/* --- the runs ------------------------------------------------------------------------------------------------------ */

struct copy {
  uint8_t *bytes[MAX_TENSORS];
};

static void *allocate(size_t bytes) {
  void *p = malloc(bytes ? bytes : 1);
  if (p == NULL) fail("no memory");
  return p;
}

static void save(const struct scene *scene, struct copy *copy) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) {
    copy->bytes[i] = allocate(scene->tensors[i].bytes);
    memcpy(copy->bytes[i], scene->tensors[i].base, scene->tensors[i].bytes);
  }
}

static void restore(struct scene *scene, const struct copy *copy) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) memcpy(scene->tensors[i].base, copy->bytes[i], scene->tensors[i].bytes);
}

static void discard(const struct scene *scene, struct copy *copy) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) free(copy->bytes[i]);
}

static void expect_same(const struct scene *scene, const struct copy *copy, const char *how) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) {
    const struct tensor *tensor = &scene->tensors[i];
    for (size_t b = 0; b < tensor->bytes; b++)
      if (tensor->base[b] != copy->bytes[i][b]) fail("%s: byte %zu of tensor %u of %zu bytes differs", how, b, i, tensor->bytes);
  }
}

static void expect_inputs_kept(const struct scene *scene, const struct copy *inputs) {
  for (uint32_t i = 1; i < scene->n_tensors; i++) {
    const struct tensor *tensor = &scene->tensors[i];
    for (size_t b = 0; b < tensor->bytes; b++) {
      if (tensor->written && b % tensor->row_bytes < tensor->row_width) continue;
      if (tensor->base[b] != inputs->bytes[i][b]) fail("byte %zu of tensor %u was changed", b, i);
    }
  }
}

/* One step: items [0, n) as the cuts say, cut[i] set where a new call begins; calls in reverse when asked. */
static void run_items(const struct cx_kernel *kernel, const void *op, const struct cx_run *run, int apart) {
  const uint64_t scratch_bytes = kernel->scratch_bytes ? kernel->scratch_bytes(op, run->n_rows) : 0;
  const size_t room = (size_t)(scratch_bytes + 63) / 64 * 64;
  uint8_t *memory = allocate(room + 128), *scratch = memory + (64 - (uintptr_t)memory % 64);
  memset(memory, 0xff, room + 128);
  uint32_t end = kernel->items(op, run);
  while (end > 0) {
    const uint32_t n = apart ? 1 + random_below(end < 4 ? end : 4) : end;
    kernel->run(op, run, end - n, end, scratch);
    end -= n;
  }
  for (size_t i = scratch_bytes; i < room + 64; i++)
    if (scratch[i] != 0xff && scratch + i < memory + room + 128) fail("scratch of %zu bytes was exceeded", (size_t)scratch_bytes);
  free(memory);
}

/* The step's rows in steps of at most `most` rows each. */
static void run_in_steps(const struct scene *scene, const struct cx_kernel *kernel, const void *op, size_t op_bytes,
                         const struct row_ref *refs, uint32_t n_refs, uint32_t most) {
  const int is_output = ((const struct cx_op_head *)op)->rows == CX_ROWS_OUTPUT;
  const uint32_t n_rows = is_output ? scene->run.n_out : scene->run.n_rows;
  _Alignas(8) uint8_t moved[CX_OP_BYTES];
  for (uint32_t row = 0, n; row < n_rows; row += n) {
    struct cx_run run = scene->run;
    n = 1 + random_below(most);
    if (n > n_rows - row) n = n_rows - row;
    memcpy(moved, op, op_bytes);
    for (uint32_t i = 0; i < n_refs; i++) {
      struct cx_ref ref;
      memcpy(&ref, moved + refs[i].at, sizeof ref);
      ref.offset += (uint64_t)row * refs[i].stride * sizeof(float);
      memcpy(moved + refs[i].at, &ref, sizeof ref);
    }
    if (is_output) {
      run.out_rows += row;
      run.n_out = n;
    } else {
      run.tokens += row;
      run.positions += row;
      run.slots += row;
      run.n_rows = n;
    }
    run_items(kernel, moved, &run, 0);
  }
}

void settle(struct scene *scene, const struct cx_row *row, enum cx_op_code code, const void *op, size_t op_bytes,
            const struct row_ref *refs, uint32_t n_refs) {
  const struct cx_kernel *kernel = &row->kernels[code];
  struct copy inputs, result;
  save(scene, &inputs);
  run_items(kernel, op, &scene->run, 0);
  expect_inputs_kept(scene, &inputs);
  save(scene, &result);
  restore(scene, &inputs);
  run_items(kernel, op, &scene->run, 1);
  expect_same(scene, &result, "items apart");
  restore(scene, &inputs);
  run_in_steps(scene, kernel, op, op_bytes, refs, n_refs, 1);
  expect_same(scene, &result, "rows alone");
  restore(scene, &inputs);
  run_in_steps(scene, kernel, op, op_bytes, refs, n_refs, 5);
  expect_same(scene, &result, "rows in steps of up to 5");
  discard(scene, &inputs);
  discard(scene, &result);
}
