/* check_matmul [--seed N] [--row NAME] [--cases N]: the linear ops of every row that this processor can run, over every
 * weight type. check_matmul --bench [--int8] [--row NAME] [--shape KxNxROWS,MIB] [TYPE...]: speed of the same calls in
 * processor time, with a checksum; --int8 takes the ops with int8 activations (checked in check_int8.c).
 *
 * Each output is judged three ways: against a float64 product of plainly decoded weights; bit for bit against the
 * definition of a linear layer spelled out lane by lane; and bit for bit against the same row run alone, with items in
 * pieces and in another order. Tensors end or begin at a page that cannot be touched, weights at any byte. The first
 * failure prints the case and ends with status 1.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cpu/lane_cpu.h"

#define MAX_N 200
#define MAX_ROWS 150
#define MAX_K 3000
#define MAX_TENSORS 16

/* What a row's bits are made of: the definition depends on both. */
static const struct {
  const char *name;
  int lanes, is_fused;
} row_kinds[] = {
    {"x86-64-v4-vnni", 16, 1}, {"x86-64-v4", 16, 1}, {"x86-64-v3", 8, 1}, {"x86-64-v2", 4, 0},
    {"aarch64-dotprod", 4, 1}, {"aarch64", 4, 1},    {"scalar", 1, 0},
};

static uint64_t random_state;
static char case_text[512];

static _Noreturn void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "check_matmul: %s: ", case_text);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  exit(1);
}

/* splitmix64 */
static uint64_t random_bits(void) {
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static uint32_t random_below(uint32_t n) { return (uint32_t)(random_bits() % n); }
static float random_unit(void) { return (float)((double)(random_bits() >> 11) * 0x1p-53 * 2 - 1); }

/* --- tensors between pages that cannot be touched
 * ---------------------------------------------------------------------- */

struct tensor {
  uint8_t *base, *map;
  size_t bytes, map_bytes;
};

/* At the start of its pages, or at their end; a tensor at the start may begin `shift` bytes in. */
static struct tensor tensor_new(size_t bytes, int at_end, size_t shift) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + shift + page - 1) / page * page;
  struct tensor tensor = {.bytes = bytes, .map_bytes = inner + 2 * page};
  tensor.map = mmap(NULL, tensor.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (tensor.map == MAP_FAILED) fail("no memory");
  if (mprotect(tensor.map, page, PROT_NONE) || mprotect(tensor.map + page + inner, page, PROT_NONE))
    fail("no guard pages");
  tensor.base = tensor.map + page + (at_end ? inner - bytes : shift);
  memset(tensor.map + page, 0xff, inner);
  return tensor;
}

static void tensor_free(struct tensor *tensor) { munmap(tensor->map, tensor->map_bytes); }

/* --- a case
 * ------------------------------------------------------------------------------------------------------------ */

struct matrix {
  const struct cx_quant_info *type;
  struct tensor raw, bias, y;
  float *plain; /* [n, k], decoded by the plain decoder */
  uint32_t n, y_stride;
};

struct scene {
  uint32_t k, n_rows, n_matrices, x_stride, residual_stride;
  int is_gated, has_residual, has_bias, in_place;
  struct matrix matrices[CX_LINEAR_PARTS];
  struct tensor x, residual;
  uint8_t *arenas[MAX_TENSORS];
  union {
    struct cx_op_head head;
    struct cx_op_linear linear;
    struct cx_op_gated_linear gated;
  } op;
  struct cx_run run;
};

static uint32_t stride_for(uint32_t width) { return (width + 15) / 16 * 16 + 16 * random_below(3); }

/* Random blocks whose f16 factors are small ordinary numbers, so that sums stay finite. */
static void fill_blocks(const struct cx_quant_info *type, uint8_t *p, size_t n_blocks) {
  static const struct {
    const char *name;
    int at[2];
  } factors[] = {{"f16", {0, -1}},    {"q8_0", {0, -1}},   {"q4_0", {0, -1}},   {"q4_1", {0, 2}}, {"q5_0", {0, -1}},
                 {"q5_1", {0, 2}},    {"q2_k", {80, 82}},  {"q3_k", {108, -1}}, {"q4_k", {0, 2}}, {"q5_k", {0, 2}},
                 {"q6_k", {208, -1}}, {"iq4_nl", {0, -1}}, {"iq4_xs", {0, -1}}};
  for (size_t b = 0; b < n_blocks; b++, p += type->block_bytes) {
    for (uint32_t i = 0; i < type->block_bytes; i++) p[i] = (uint8_t)random_bits();
    const float value = random_unit();
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (strcmp(type->name, "f32") == 0) memcpy(p, &bits, 4);
    if (strcmp(type->name, "bf16") == 0) memcpy(p, (const uint8_t *)&bits + 2, 2);
    if (strcmp(type->name, "planes") == 0) {
      p[384] = (uint8_t)(124 + random_below(4)); /* base; then how many values have exponents of their own */
      p[385] = random_below(32) == 0 ? 1 : 0;
      for (int i = 392; i < 398; i++) p[i] = (uint8_t)(100 + random_below(26));
    }
    if (strcmp(type->name, "mxfp4") == 0) p[0] = (uint8_t)(120 + random_below(8));
    for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
      if (strcmp(type->name, factors[f].name) != 0) continue;
      for (int i = 0; i < 2; i++)
        if (factors[f].at[i] >= 0)
          p[factors[f].at[i] + 1] = (uint8_t)((p[factors[f].at[i] + 1] & 0x83) | 0x20 | random_below(5) << 2);
    }
  }
}

static void fill_floats(struct tensor *tensor, uint32_t n_rows, uint32_t width, uint32_t stride) {
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t i = 0; i < width; i++) {
      const float value = random_unit() * (random_below(16) == 0 ? 8 : 1);
      memcpy(tensor->base + ((size_t)r * stride + i) * 4, &value, 4);
    }
}

static struct cx_ref reference(struct scene *scene, uint32_t arena, uint32_t type, const struct tensor *tensor) {
  const struct cx_ref ref = {arena, type, 0};
  scene->arenas[arena] = tensor->base;
  return ref;
}

static struct tensor rows_new(uint32_t n_rows, uint32_t width, uint32_t stride, int at_end) {
  const size_t bytes = (((size_t)n_rows - 1) * stride + width) * 4;
  return tensor_new(bytes, at_end, 0);
}

static void matrix_new(struct scene *scene, struct matrix *matrix, const struct cx_quant_info *type, uint32_t n,
                       int at_end) {
  const size_t n_blocks = (size_t)n * scene->k / type->block_elements, elements = (size_t)n * scene->k;
  matrix->type = type;
  matrix->n = n;
  matrix->y_stride = stride_for(n);
  matrix->raw = tensor_new(n_blocks * type->block_bytes, at_end, random_below(64));
  fill_blocks(type, matrix->raw.base, n_blocks);
  matrix->plain = malloc(elements * sizeof(float));
  if (matrix->plain == NULL || cx_quant_decode(type->id, matrix->raw.base, elements, matrix->plain))
    fail("plain decoder");
  matrix->y = rows_new(scene->n_rows, n, matrix->y_stride, at_end);
  matrix->bias = tensor_new(n * 4, at_end, 0);
  fill_floats(&matrix->bias, 1, n, n);
}

static void make_linear_op(struct scene *scene) {
  struct cx_op_linear op = {.head = {.op = CX_OP_LINEAR},
                            .k = scene->k,
                            .n_parts = scene->n_matrices,
                            .x_stride = scene->x_stride,
                            .residual_stride = scene->residual_stride};
  op.x = reference(scene, 1, 0, &scene->x);
  if (scene->has_residual)
    op.residual =
        reference(scene, scene->in_place ? 4 : 2, 0, scene->in_place ? &scene->matrices[0].y : &scene->residual);
  for (uint32_t i = 0; i < scene->n_matrices; i++) {
    struct matrix *matrix = &scene->matrices[i];
    op.parts[i].weight = reference(scene, 3 + 3 * i, matrix->type->id, &matrix->raw);
    op.parts[i].y = reference(scene, 4 + 3 * i, 0, &matrix->y);
    if (scene->has_bias) op.parts[i].bias = reference(scene, 5 + 3 * i, 0, &matrix->bias);
    op.parts[i].n = matrix->n;
    op.parts[i].y_stride = matrix->y_stride;
  }
  scene->op.linear = op;
}

static void make_gated_op(struct scene *scene) {
  struct cx_op_gated_linear op = {.head = {.op = CX_OP_GATED_LINEAR},
                                  .k = scene->k,
                                  .n = scene->matrices[0].n,
                                  .x_stride = scene->x_stride,
                                  .y_stride = scene->matrices[1].y_stride,
                                  .act = CX_ACT_SILU};
  op.x = reference(scene, 1, 0, &scene->x);
  op.gate = reference(scene, 3, scene->matrices[0].type->id, &scene->matrices[0].raw);
  op.up = reference(scene, 6, scene->matrices[1].type->id, &scene->matrices[1].raw);
  op.y = reference(scene, 7, 0, &scene->matrices[1].y);
  scene->op.gated = op;
}

static uint32_t random_k(const struct cx_quant_info *type) {
  const uint32_t step = type->block_elements == 1 ? 1 : type->block_elements == 32 ? 32 : 256;
  const uint32_t most = random_below(8) == 0 ? MAX_K : 600;
  return step * (1 + random_below(most / step));
}

static const struct cx_quant_info *random_type_for(uint32_t k) {
  for (;;) {
    const struct cx_quant_info *type = cx_quant_at((int)random_below((uint32_t)cx_quant_count()));
    if (k % type->block_elements == 0) return type;
  }
}

static void scene_new(struct scene *scene, const struct cx_quant_info *type) {
  static const uint32_t row_counts[] = {1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31, 64, 65, 70, 129, MAX_ROWS};
  memset(scene, 0, sizeof *scene);
  const int at_end = (int)random_below(2);
  scene->k = random_k(type);
  scene->n_rows = row_counts[random_below(sizeof row_counts / sizeof row_counts[0])];
  scene->is_gated = random_below(3) == 0;
  scene->n_matrices = scene->is_gated ? 2 : 1 + random_below(CX_LINEAR_PARTS);
  scene->has_bias = !scene->is_gated && random_below(2);
  scene->has_residual = scene->n_matrices == 1 && random_below(2);
  scene->in_place = scene->has_residual && random_below(2);
  scene->x_stride = stride_for(scene->k);
  scene->x = rows_new(scene->n_rows, scene->k, scene->x_stride, at_end);
  fill_floats(&scene->x, scene->n_rows, scene->k, scene->x_stride);
  for (uint32_t i = 0; i < scene->n_matrices; i++) {
    const uint32_t n =
        scene->is_gated && i == 1 ? scene->matrices[0].n : 1 + random_below(random_below(4) == 0 ? MAX_N : 60);
    matrix_new(scene, &scene->matrices[i], i == 0 ? type : random_type_for(scene->k), n, at_end);
  }
  scene->residual_stride = scene->in_place ? scene->matrices[0].y_stride : stride_for(scene->matrices[0].n);
  scene->residual = rows_new(scene->n_rows, scene->matrices[0].n, scene->residual_stride, at_end);
  fill_floats(&scene->residual, scene->n_rows, scene->matrices[0].n, scene->residual_stride);
  if (scene->is_gated)
    make_gated_op(scene);
  else
    make_linear_op(scene);
  const struct cx_run run = {.arenas = scene->arenas, .n_rows = scene->n_rows};
  scene->run = run;
}

static void scene_free(struct scene *scene) {
  for (uint32_t i = 0; i < scene->n_matrices; i++) {
    tensor_free(&scene->matrices[i].raw);
    tensor_free(&scene->matrices[i].bias);
    tensor_free(&scene->matrices[i].y);
    free(scene->matrices[i].plain);
  }
  tensor_free(&scene->x);
  tensor_free(&scene->residual);
}

/* --- what an output must be
 * -------------------------------------------------------------------------------------------- */

static float value_at(const struct tensor *tensor, size_t index) {
  float value;
  memcpy(&value, tensor->base + index * 4, 4);
  return value;
}

/* The definition: lanes side by side, vectors in order, then the upper half onto the lower. */
static float defined_sum(const float *w, const uint8_t *x, uint32_t k, int lanes, int is_fused) {
  volatile float total[16] = {0};
  for (uint32_t i = 0; i < (k + (uint32_t)lanes - 1) / (uint32_t)lanes * (uint32_t)lanes; i++) {
    float weight = 0, input = 0;
    if (i < k) weight = w[i], memcpy(&input, x + (size_t)i * 4, 4);
    const int lane = (int)(i % (uint32_t)lanes);
    const volatile float product = weight * input;
    total[lane] = is_fused ? fmaf(weight, input, total[lane]) : product + total[lane];
  }
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) total[i] = total[i] + total[i + half];
  return total[0];
}

static double exact_sum(const float *w, const uint8_t *x, uint32_t k, double *magnitude) {
  double sum = 0;
  for (uint32_t i = 0; i < k; i++) {
    float input;
    memcpy(&input, x + (size_t)i * 4, 4);
    sum += (double)w[i] * (double)input;
    *magnitude += fabs((double)w[i] * (double)input);
  }
  return sum;
}

static void check_linear(const struct scene *scene, const struct matrix *matrix, uint32_t row, uint32_t i, int lanes,
                         int is_fused) {
  const float *w = matrix->plain + (size_t)i * scene->k;
  const uint8_t *x = scene->x.base + (size_t)row * scene->x_stride * 4;
  const float got = value_at(&matrix->y, (size_t)row * matrix->y_stride + i);
  float want = defined_sum(w, x, scene->k, lanes, is_fused);
  double magnitude = 0, exact = exact_sum(w, x, scene->k, &magnitude);
  const double bias = scene->has_bias ? (double)value_at(&matrix->bias, i) : 0;
  const double residual =
      scene->has_residual ? (double)value_at(&scene->residual, (size_t)row * scene->residual_stride + i) : 0;
  if (scene->has_bias) want = want + (float)bias;
  if (scene->has_residual) want = (float)residual + want;
  exact += bias + residual;
  magnitude += fabs(bias) + fabs(residual);
  if (memcmp(&got, &want, sizeof got) != 0)
    fail("y[%u][%u] is %a, by definition %a", row, i, (double)got, (double)want);
  if (!(fabs((double)got - exact) <= magnitude * 0x1p-23 * (4 + scene->k / (double)lanes)))
    fail("y[%u][%u] is %.9g, in float64 %.9g", row, i, (double)got, exact);
}

static void check_gated(const struct scene *scene, uint32_t row, uint32_t i, int lanes, int is_fused) {
  const struct matrix *gate = &scene->matrices[0], *up = &scene->matrices[1];
  const uint8_t *x = scene->x.base + (size_t)row * scene->x_stride * 4;
  const double g = (double)defined_sum(gate->plain + (size_t)i * scene->k, x, scene->k, lanes, is_fused);
  const double u = (double)defined_sum(up->plain + (size_t)i * scene->k, x, scene->k, lanes, is_fused);
  /* A gate below -88.7 overflows its exponential: then the result is 0 instead of something below 2^-121. */
  const double got = (double)value_at(&up->y, (size_t)row * up->y_stride + i), want = g / (1 + exp(-g)) * u;
  if (!(fabs(got - want) <= fabs(want) * 0x1p-21 + fabs(u) * 0x1p-121))
    fail("y[%u][%u] is %.9g, want %.9g (gate %g, up %g)", row, i, got, want, g, u);
}

static void check_outputs(const struct scene *scene, int lanes, int is_fused) {
  for (uint32_t row = 0; row < scene->n_rows; row++) {
    for (uint32_t m = scene->is_gated ? 1 : 0; m < scene->n_matrices; m++) {
      const struct matrix *matrix = &scene->matrices[m];
      for (uint32_t i = 0; i < matrix->n; i++) {
        if (scene->is_gated)
          check_gated(scene, row, i, lanes, is_fused);
        else
          check_linear(scene, matrix, row, i, lanes, is_fused);
      }
      for (uint32_t i = matrix->n; i < matrix->y_stride && row + 1 < scene->n_rows; i++)
        for (int b = 0; b < 4; b++)
          if (matrix->y.base[((size_t)row * matrix->y_stride + i) * 4 + (size_t)b] != 0xff)
            fail("wrote past row %u", row);
    }
  }
}

/* --- running
 * ------------------------------------------------------------------------------------------------------------ */

static void reset_outputs(struct scene *scene) {
  for (uint32_t i = 0; i < scene->n_matrices; i++) memset(scene->matrices[i].y.base, 0xff, scene->matrices[i].y.bytes);
  if (scene->in_place)
    for (uint32_t r = 0; r < scene->n_rows; r++)
      memcpy(scene->matrices[0].y.base + (size_t)r * scene->matrices[0].y_stride * 4,
             scene->residual.base + (size_t)r * scene->residual_stride * 4, (size_t)scene->matrices[0].n * 4);
}

static uint8_t *outputs_copy(const struct scene *scene) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < scene->n_matrices; i++) bytes += scene->matrices[i].y.bytes;
  uint8_t *copy = malloc(bytes), *to = copy;
  for (uint32_t i = 0; i < scene->n_matrices; to += scene->matrices[i].y.bytes, i++)
    memcpy(to, scene->matrices[i].y.base, scene->matrices[i].y.bytes);
  return copy;
}

static void expect_outputs(const struct scene *scene, const uint8_t *want, const char *how) {
  for (uint32_t i = 0; i < scene->n_matrices; want += scene->matrices[i].y.bytes, i++)
    if (memcmp(want, scene->matrices[i].y.base, scene->matrices[i].y.bytes) != 0) fail("other bits %s", how);
}

/* Scratch between guard pages, full of NaNs. */
static struct tensor scratch_new(const struct cx_kernel *kernel, const void *op, uint32_t max_rows) {
  return tensor_new((kernel->scratch_bytes(op, max_rows) + 63) / 64 * 64, 1, 0);
}

static void run_in_pieces(const struct cx_kernel *kernel, const void *op, const struct cx_run *run, void *scratch) {
  const uint32_t n_items = kernel->items(op, run);
  for (uint32_t end = n_items; end > 0;) { /* from the last to the first */
    const uint32_t begin = end - 1 - random_below(end < 3 ? end : 3);
    kernel->run(op, run, begin, end, scratch);
    end = begin;
  }
}

/* Rows alone and in twos: every activation reference moves by whole rows. */
static void run_rows_apart(struct scene *scene, const struct cx_kernel *kernel, uint32_t rows_each, void *scratch) {
  uint8_t *bases[MAX_TENSORS];
  memcpy(bases, scene->arenas, sizeof bases);
  for (uint32_t row = 0; row < scene->n_rows; row += rows_each) {
    struct cx_run run = scene->run;
    run.n_rows = scene->n_rows - row < rows_each ? scene->n_rows - row : rows_each;
    run.arenas = bases;
    bases[1] = scene->arenas[1] + (size_t)row * scene->x_stride * 4;
    if (scene->has_residual && !scene->in_place) bases[2] = scene->arenas[2] + (size_t)row * scene->residual_stride * 4;
    for (uint32_t i = 0; i < scene->n_matrices; i++)
      if (scene->arenas[4 + 3 * i] != NULL)
        bases[4 + 3 * i] = scene->arenas[4 + 3 * i] + (size_t)row * scene->matrices[i].y_stride * 4;
    kernel->run(&scene->op, &run, 0, kernel->items(&scene->op, &run), scratch);
  }
}

static void check_case(const struct cx_row *row, const struct cx_quant_info *type, int lanes, int is_fused,
                       uint64_t seed, uint32_t number) {
  struct scene scene;
  snprintf(case_text, sizeof case_text, "row %s, %s, seed %llu, case %u", row->name, type->name,
           (unsigned long long)seed, number);
  scene_new(&scene, type);
  const size_t length = strlen(case_text);
  snprintf(case_text + length, sizeof case_text - length,
           ": %s k %u n %u rows %u parts %u bias %d residual %d in place %d", scene.is_gated ? "gated" : "linear",
           scene.k, scene.matrices[0].n, scene.n_rows, scene.n_matrices, scene.has_bias, scene.has_residual,
           scene.in_place);
  const struct cx_kernel *kernel = &row->kernels[scene.op.head.op];
  struct tensor scratch = scratch_new(kernel, &scene.op, scene.n_rows);
  reset_outputs(&scene);
  kernel->run(&scene.op, &scene.run, 0, kernel->items(&scene.op, &scene.run), scratch.base);
  check_outputs(&scene, lanes, is_fused);
  uint8_t *want = outputs_copy(&scene);
  memset(scratch.base, 0xff, scratch.bytes);
  reset_outputs(&scene);
  run_in_pieces(kernel, &scene.op, &scene.run, scratch.base);
  expect_outputs(&scene, want, "with items in pieces");
  for (uint32_t each = 1; each <= 3; each++) {
    reset_outputs(&scene);
    run_rows_apart(&scene, kernel, each, scratch.base);
    expect_outputs(&scene, want, each == 1 ? "with each row alone" : "with few rows at a time");
  }
  scene.run.n_rows = 0;
  if (kernel->items(&scene.op, &scene.run) != 0) fail("items for no rows");
  free(want);
  tensor_free(&scratch);
  scene_free(&scene);
}

/* Every block type's vector decoder, at both ends of its memory. */
static void check_decoder(const struct cx_row *row, int index) {
  const struct cx_quant_info *type = cx_quant_at(index);
  for (uint32_t at_end = 0; at_end < 2; at_end++) {
    const uint32_t n_blocks = 1 + random_below(300), n = n_blocks * type->block_elements;
    struct tensor raw = tensor_new((size_t)n_blocks * type->block_bytes, (int)at_end, 3),
                  out = tensor_new((size_t)n * 4, (int)at_end, 0);
    float *want = malloc((size_t)n * 4);
    for (size_t i = 0; i < raw.bytes; i++) raw.base[i] = (uint8_t)random_bits();
    snprintf(case_text, sizeof case_text, "row %s, decode %s, %u blocks", row->name, type->name, n_blocks);
    cx_quant_decode(type->id, raw.base, n, want);
    row->decode[index](raw.base, n, (float *)out.base);
    for (uint32_t i = 0; i < n; i++) {
      const float got = value_at(&out, i);
      if (memcmp(&got, &want[i], 4) != 0 && !(got != got && want[i] != want[i]))
        fail("element %u is %a, want %a", i, (double)got, (double)want[i]);
    }
    free(want);
    tensor_free(&raw);
    tensor_free(&out);
  }
}

static void check_row(const struct cx_row *row, uint64_t seed, uint32_t n_cases) {
  size_t kind = 0;
  while (strcmp(row_kinds[kind].name, row->name) != 0) {
    snprintf(case_text, sizeof case_text, "row %s", row->name);
    if (++kind == sizeof row_kinds / sizeof row_kinds[0]) fail("no line in row_kinds");
  }
  for (int i = 0; i < cx_quant_count(); i++) {
    for (uint32_t n = 0; n < n_cases; n++) {
      random_state = seed * 1000003 + (uint64_t)i * 10007 + n;
      check_case(row, cx_quant_at(i), row_kinds[kind].lanes, row_kinds[kind].is_fused, seed, n);
    }
    check_decoder(row, i);
  }
  printf("%s: %d types, %u cases each: ok\n", row->name, cx_quant_count(), n_cases);
}

/* --- speed
 * ----------------------------------------------------------------------------------------------------------------- */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* others may use the machine */
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int is_int8; /* bench the ops with int8 activations */

/* x[n_rows, k] as groups; the bench's op then reads them. */
static float *quantized(const struct cx_row *row, float *x, uint32_t k, uint32_t n_rows, struct cx_op_linear *op) {
  const uint32_t stride = (k / 32 * CX_INT8_GROUP_FLOATS + 15) / 16 * 16;
  float *groups = aligned_alloc(64, (size_t)n_rows * stride * 4);
  uint8_t *arenas[3] = {NULL, (uint8_t *)x, (uint8_t *)groups};
  const struct cx_op_quantize quantize = {
      .head = {.op = CX_OP_QUANTIZE}, .dim = k, .x_stride = k, .y_stride = stride, .x = {1, 0, 0}, .y = {2, 0, 0}};
  const struct cx_run run = {.arenas = arenas, .n_rows = n_rows};
  const struct cx_kernel *kernel = &row->kernels[CX_OP_QUANTIZE];
  kernel->run(&quantize, &run, 0, kernel->items(&quantize, &run), NULL);
  op->head.op = CX_OP_LINEAR_INT8;
  op->x_stride = stride;
  free(x);
  return groups;
}

/* The best of `tries` runs of one op over n_copies weights one after the other, and what it produced. */
static void bench_one(const struct cx_row *row, const struct cx_quant_info *type, uint32_t k, uint32_t n,
                      uint32_t n_rows, size_t n_copies, int tries) {
  const size_t bytes = (size_t)n * k / type->block_elements * type->block_bytes;
  const uint32_t y_stride = (n + 15) / 16 * 16;
  uint8_t *weights = aligned_alloc(4096, (bytes * n_copies + 4095) / 4096 * 4096);
  float *x = aligned_alloc(64, (size_t)n_rows * k * 4 + 64), *y = aligned_alloc(64, (size_t)n_rows * y_stride * 4);
  fill_blocks(type, weights, bytes / type->block_bytes);
  for (size_t c = 1; c < n_copies; c++) memcpy(weights + c * bytes, weights, bytes);
  for (size_t i = 0; i < (size_t)n_rows * k; i++) x[i] = random_unit();
  struct cx_op_linear op = {.head = {.op = CX_OP_LINEAR}, .k = k, .n_parts = 1, .x_stride = k, .x = {1, 0, 0}};
  if (is_int8) x = quantized(row, x, k, n_rows, &op);
  uint8_t *arenas[4] = {NULL, (uint8_t *)x, (uint8_t *)y, weights};
  op.parts[0].weight = (struct cx_ref){3, type->id, 0};
  op.parts[0].y = (struct cx_ref){2, 0, 0};
  op.parts[0].n = n;
  op.parts[0].y_stride = y_stride;
  const struct cx_run run = {.arenas = arenas, .n_rows = n_rows};
  const struct cx_kernel *kernel = &row->kernels[op.head.op];
  void *scratch = aligned_alloc(64, (kernel->scratch_bytes(&op, n_rows) + 127) / 64 * 64);
  double best = 1e9, sum = 0;
  for (int t = 0; t < tries; t++) {
    const double start = seconds();
    for (size_t c = 0; c < n_copies; c++) {
      op.parts[0].weight.offset = c * bytes;
      kernel->run(&op, &run, 0, kernel->items(&op, &run), scratch);
    }
    const double taken = seconds() - start;
    if (taken < best) best = taken;
  }
  for (size_t i = 0; i < (size_t)n_rows * y_stride; i += 7) sum += i % y_stride < n ? (double)y[i] : 0;
  const double weights_s = (double)n * k * (double)n_copies / best;
  printf("%-14s %-6s k %5u n %5u rows %4u x %4zu: %7.2f Gw/s %7.1f GFLOP/s %6.1f GB/s  checksum %g\n", row->name,
         type->name, k, n, n_rows, n_copies, weights_s * 1e-9, 2e-9 * weights_s * n_rows,
         (double)bytes * (double)n_copies / best * 1e-9, sum);
  fflush(stdout);
  free(weights), free(x), free(y), free(scratch);
}

struct shape {
  uint32_t k, n, n_rows, mib; /* mib: how much weight there is in all, in MiB as f16 would have it */
};

static void bench_row(const struct cx_row *row, const struct shape *only, char **types, int n_types) {
  static const struct shape shapes[] = {
      {1024, 128, 1, 1},   {1024, 1024, 1, 192}, {3072, 1024, 1, 192}, {1024, 1024, 2, 64},  {1024, 1024, 3, 64},
      {1024, 1024, 4, 64}, {1024, 1024, 8, 64},  {1024, 1024, 64, 8},  {1024, 3072, 256, 8}, {3072, 1024, 256, 8},
  };
  for (int i = 0; i < cx_quant_count(); i++) {
    const struct cx_quant_info *type = cx_quant_at(i);
    int wanted = n_types == 0;
    if (is_int8 && !cx_quant_takes_int8(type->id)) continue;
    for (int t = 0; t < n_types; t++) wanted |= strcmp(types[t], type->name) == 0;
    for (size_t s = 0; wanted && s < sizeof shapes / sizeof shapes[0]; s++) {
      const struct shape shape = only != NULL ? *only : shapes[s];
      const size_t n_copies = ((size_t)shape.mib << 19) / ((size_t)shape.n * shape.k);
      bench_one(row, type, shape.k, shape.n, shape.n_rows, n_copies ? n_copies : 1, shape.n_rows < 64 ? 7 : 4);
      if (only != NULL) break;
    }
  }
}

int main(int argc, char **argv) {
  uint64_t seed = 1;
  uint32_t n_cases = 40;
  const char *only_row = NULL;
  struct shape shape = {0, 0, 0, 0};
  int is_bench = 0, i = 1, n_rows = 0;
  for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
    if (strcmp(argv[i], "--bench") == 0)
      is_bench = 1;
    else if (strcmp(argv[i], "--int8") == 0)
      is_int8 = 1;
    else if (i + 1 < argc && strcmp(argv[i], "--shape") == 0) {
      if (sscanf(argv[++i], "%ux%ux%u,%u", &shape.k, &shape.n, &shape.n_rows, &shape.mib) != 4)
        return fprintf(stderr, "check_matmul: --shape K x N x ROWS,MIB\n"), 2;
    } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
      seed = strtoull(argv[++i], NULL, 10);
    else if (i + 1 < argc && strcmp(argv[i], "--cases") == 0)
      n_cases = (uint32_t)strtoul(argv[++i], NULL, 10);
    else if (i + 1 < argc && strcmp(argv[i], "--row") == 0)
      only_row = argv[++i];
    else
      return fprintf(stderr,
                     "usage: check_matmul [--seed N] [--row NAME] [--cases N] | --bench [--int8] [--row NAME] [--shape "
                     "KxNxROWS,MIB] [TYPE...]\n"),
             2;
  }
  for (int r = 0; r < cx_row_count(); r++) {
    if ((only_row != NULL && strcmp(cx_row_name(r), only_row) != 0) || !cx_row_usable(r)) continue;
    const struct cx_row *row = cx_row_find(cx_row_name(r), NULL);
    if (is_bench)
      bench_row(row, shape.k ? &shape : NULL, argv + i, argc - i);
    else
      check_row(row, seed, n_cases);
    n_rows++;
  }
  if (n_rows == 0) return fprintf(stderr, "check_matmul: no row to check\n"), 1;
  if (!is_bench) printf("seed %llu: ok\n", (unsigned long long)seed);
  return 0;
}
