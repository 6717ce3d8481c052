/* The checks of linear and gated_linear: every weight type, odd sizes, one to many rows, parts, biases and residuals.
 *
 * The judge multiplies what the plain decoder gives, in float64. A sum of k products in f32 is off by a small multiple of the sum of
 * their sizes; that sum bounds what is allowed.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "check.h"

#define SUM_ERROR 3e-6

struct linear_shape {
  const struct cx_quant_info *type;
  uint32_t k, n_rows, n_parts, n[CX_LINEAR_PARTS];
  int has_bias, has_residual, in_place, is_output;
};

static size_t line_bytes(const struct cx_quant_info *type, uint32_t k) { return (size_t)k / type->block_elements * type->block_bytes; }

static struct cx_ref add_weight(struct scene *scene, const struct cx_quant_info *type, uint32_t n, uint32_t k) {
  const size_t bytes = n * line_bytes(type, k);
  const struct cx_ref ref = add_bytes(scene, type->id, bytes, 0);
  fill_blocks(type, at(scene, ref), bytes);
  return ref;
}

/* weight[row, :] . x, and the sum of the products' sizes */
static double dot(const struct cx_quant_info *type, const uint8_t *weight, uint32_t row, const float *x, uint32_t k, double *size) {
  float *line = malloc(k * sizeof *line);
  double sum = 0;
  cx_quant_decode(type->id, weight + row * line_bytes(type, k), k, line);
  *size = 0;
  for (uint32_t i = 0; i < k; i++) {
    const double product = (double)line[i] * (double)x[i];
    sum += product;
    *size += fabs(product);
  }
  free(line);
  return sum;
}

static void linear_case(const struct cx_row *row, const struct linear_shape *s, int placement) {
  const uint32_t residual_stride = stride_for(s->n[0]) + 16;
  struct scene scene;
  struct row_ref refs[CX_LINEAR_PARTS + 2];
  uint32_t n_refs = 0;
  begin_case("%s, k %u, %u rows, %u parts of %u, bias %d, residual %d, in place %d, output rows %d, placement %d", s->type->name, s->k,
             s->n_rows, s->n_parts, s->n[0], s->has_bias, s->has_residual, s->in_place, s->is_output, placement);
  scene_begin(&scene, placement, s->n_rows, s->is_output ? s->n_rows : 0);
  struct cx_op_linear op = {.head = {.op = CX_OP_LINEAR, .rows = s->is_output ? CX_ROWS_OUTPUT : CX_ROWS_STEP}, .k = s->k,
                            .n_parts = s->n_parts, .x_stride = stride_for(s->k)};
  op.x = add_normal(&scene, s->n_rows, s->k, op.x_stride, 1, 0);
  refs[n_refs++] = (struct row_ref){offsetof(struct cx_op_linear, x), op.x_stride};
  for (uint32_t p = 0; p < s->n_parts; p++) {
    struct cx_linear_part *part = &op.parts[p];
    part->n = s->n[p];
    part->y_stride = s->in_place ? residual_stride : stride_for(s->n[p]);
    part->weight = add_weight(&scene, s->type, s->n[p], s->k);
    if (s->has_bias) part->bias = add_normal(&scene, 1, s->n[p], s->n[p], 1, 0);
    part->y = s->in_place ? add_normal(&scene, s->n_rows, s->n[p], part->y_stride, 1, 1) : add_rows(&scene, s->n_rows, s->n[p], part->y_stride, 1);
    refs[n_refs++] = (struct row_ref){offsetof(struct cx_op_linear, parts) + p * sizeof *part + offsetof(struct cx_linear_part, y), part->y_stride};
  }
  struct cx_ref residual = {0};
  if (s->has_residual) {
    residual = add_normal(&scene, s->n_rows, s->n[0], residual_stride, 1, 0);
    if (s->in_place) /* the judge keeps its own copy of what y held */
      for (uint32_t r = 0; r < s->n_rows; r++)
        for (uint32_t j = 0; j < s->n[0]; j++) row_at(&scene, residual, r, residual_stride)[j] = row_at(&scene, op.parts[0].y, r, residual_stride)[j];
    op.residual = s->in_place ? op.parts[0].y : residual;
    op.residual_stride = residual_stride;
    refs[n_refs++] = (struct row_ref){offsetof(struct cx_op_linear, residual), residual_stride};
  }
  settle(&scene, row, CX_OP_LINEAR, &op, sizeof op, refs, n_refs);
  for (uint32_t p = 0; p < s->n_parts; p++) {
    const struct cx_linear_part *part = &op.parts[p];
    for (uint32_t r = 0; r < s->n_rows; r++)
      for (uint32_t j = 0; j < part->n; j++) {
        double size, want = dot(s->type, at(&scene, part->weight), j, row_at(&scene, op.x, r, op.x_stride), s->k, &size);
        const double bias = s->has_bias ? (double)((float *)at(&scene, part->bias))[j] : 0;
        const double added = s->has_residual ? (double)row_at(&scene, residual, r, residual_stride)[j] : 0;
        expect_near("element", j, row_at(&scene, part->y, r, part->y_stride)[j], want + bias + added, SUM_ERROR * (size + fabs(bias) + fabs(added)));
      }
  }
  scene_end(&scene);
}

static uint32_t round_k(const struct cx_quant_info *type, uint32_t k) {
  const uint32_t multiple = type->block_elements;
  return (k + multiple - 1) / multiple * multiple;
}

void check_linear(const struct cx_row *row) {
  const uint32_t ks[] = {1, 33, 64, 200, 576, 1030}, ns[] = {1, 2, 3, 5, 8, 17, 31}, rows[] = {1, 2, 3, 4, 5, 8, 13, 33};
  uint32_t c = 0;
  for (int index = 0; index < cx_quant_count(); index++)
    for (uint32_t i = 0; i < 16; i++, c++) {
      struct linear_shape s = {.type = cx_quant_at(index), .n_rows = rows[i % 8], .n_parts = c % 3 == 0 ? 3 : 1 + c % 2};
      s.k = round_k(s.type, ks[(i + c / 5) % 6]);
      for (uint32_t p = 0; p < 3; p++) s.n[p] = ns[(c + 2 * p) % 7];
      s.has_bias = c / 2 % 2;
      s.has_residual = s.n_parts == 1;
      s.in_place = s.has_residual && c / 4 % 2;
      s.is_output = c % 5 == 0;
      linear_case(row, &s, (int)(c + c / 3) % 2);
    }
}

static void gated_case(const struct cx_row *row, const struct cx_quant_info *type, uint32_t k, uint32_t n, uint32_t n_rows, int placement) {
  struct scene scene;
  begin_case("%s, k %u, n %u, %u rows, placement %d", type->name, k, n, n_rows, placement);
  scene_begin(&scene, placement, n_rows, 0);
  struct cx_op_gated_linear op = {.head = {.op = CX_OP_GATED_LINEAR}, .k = k, .n = n, .x_stride = stride_for(k), .y_stride = stride_for(n), .act = CX_ACT_SILU};
  op.x = add_normal(&scene, n_rows, k, op.x_stride, 2 / sqrt(k), 0);
  op.gate = add_weight(&scene, type, n, k);
  op.up = add_weight(&scene, type, n, k);
  op.y = add_rows(&scene, n_rows, n, op.y_stride, 1);
  const struct row_ref refs[] = {{offsetof(struct cx_op_gated_linear, x), op.x_stride}, {offsetof(struct cx_op_gated_linear, y), op.y_stride}};
  settle(&scene, row, CX_OP_GATED_LINEAR, &op, sizeof op, refs, 2);
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t j = 0; j < n; j++) {
      const float *x = row_at(&scene, op.x, r, op.x_stride);
      double gate_size, up_size;
      const double gate = dot(type, at(&scene, op.gate), j, x, k, &gate_size), up = dot(type, at(&scene, op.up), j, x, k, &up_size);
      const double silu = gate / (1 + exp(-gate));
      /* silu's slope is at most 1.1 */
      const double allowed = SUM_ERROR * (1.1 * gate_size * fabs(up) + up_size * fabs(silu) + SUM_ERROR * gate_size * up_size) + 1e-6 * fabs(silu * up);
      expect_near("element", j, row_at(&scene, op.y, r, op.y_stride)[j], silu * up, allowed + 1e-37);
    }
  scene_end(&scene);
}

void check_gated_linear(const struct cx_row *row) {
  const uint32_t ks[] = {7, 64, 320, 576}, ns[] = {1, 4, 9, 23}, rows[] = {1, 2, 6, 19};
  for (int index = 0; index < cx_quant_count(); index++)
    for (uint32_t i = 0; i < 8; i++) {
      const struct cx_quant_info *type = cx_quant_at(index);
      gated_case(row, type, round_k(type, ks[(i + i / 4) % 4]), ns[(i + (uint32_t)index) % 4], rows[i % 4], (int)i % 2);
    }
}
