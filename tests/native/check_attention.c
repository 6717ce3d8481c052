/* The check of attention: shapes, mixes of slots, lengths around the block, and inputs chosen to strain the online softmax.
 *
 * Lines of the cache that no row may read hold NaN, so reading one shows.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define N_SLOTS 3

enum kind { RANDOM, ONE_HOT, EQUAL, RISING, FALLING, HUGE_VALUES, N_KINDS };

struct shape {
  uint32_t n_heads, n_kv_heads, head_dim, n_rows, context;
  uint32_t key_type, value_type;
  enum kind kind;
};

static double element(const struct scene *scene, struct cx_ref cache, size_t index) {
  const uint8_t *base = at(scene, cache);
  return cache.type == 0 ? (double)((const float *)base)[index] : (double)bf16_value(base + 2 * index);
}

static void set_element(const struct scene *scene, struct cx_ref cache, size_t index, float value) {
  uint8_t *base = at(scene, cache);
  if (cache.type == 0) {
    ((float *)base)[index] = value;
    return;
  }
  uint32_t bits;
  const float rounded = as_bf16(value);
  memcpy(&bits, &rounded, sizeof bits);
  const uint16_t top = (uint16_t)(bits >> 16);
  memcpy(base + 2 * index, &top, sizeof top);
}

/* Rows of slots 0 and 2, in runs and alternating, at ascending positions that end near the context's end. */
static void place_rows(struct scene *scene, const struct shape *s) {
  uint32_t next[N_SLOTS] = {0, 0, 0};
  const uint32_t room = s->context - s->n_rows;
  next[0] = random_below(room + 1);
  next[2] = s->n_rows % 2 ? room : 0;
  for (uint32_t r = 0; r < s->n_rows; r++) {
    const uint32_t slot = r < s->n_rows / 2 ? 0 : r % 2 * 2;
    scene->slots[r] = slot;
    scene->positions[r] = next[slot]++;
  }
}

/* Fills every line up to the last position of a slot; the rest stays NaN. */
static void fill_caches(struct scene *scene, const struct cx_op_attention *op, const struct shape *s) {
  uint32_t n_lines[N_SLOTS] = {0, 0, 0};
  for (uint32_t r = 0; r < s->n_rows; r++) n_lines[scene->slots[r]] = scene->positions[r] + 1;
  for (uint32_t slot = 0; slot < N_SLOTS; slot++)
    for (uint32_t h = 0; h < s->n_kv_heads; h++)
      for (uint32_t p = 0; p < n_lines[slot]; p++)
        for (uint32_t i = 0; i < s->head_dim; i++) {
          const size_t index = (((size_t)slot * s->n_kv_heads + h) * s->context + p) * s->head_dim + i;
          double key = random_normal();
          if (s->kind == EQUAL) key = 0.5;
          if (s->kind == RISING || s->kind == FALLING) key = 0.05 * (s->kind == RISING ? p : s->context - p) + 0.001 * key;
          set_element(scene, op->k_cache, index, (float)key);
          set_element(scene, op->v_cache, index, (float)(random_normal() * (s->kind == HUGE_VALUES ? 1e30 : 1)));
        }
}

/* One query's output and what error is allowed: scores carry a few f32 roundings of their size, and weights are their exponentials. */
static double attend(const struct scene *scene, const struct cx_op_attention *op, uint32_t row, uint32_t head, double *want) {
  const uint32_t n = scene->positions[row] + 1, d = op->head_dim;
  const float *q = row_at(scene, op->q, row, op->q_stride) + (size_t)head * d;
  const size_t first = ((size_t)scene->slots[row] * op->n_kv_heads + head / (op->n_heads / op->n_kv_heads)) * op->context * d;
  double *scores = malloc(n * sizeof *scores), maximum = -INFINITY, sum = 0, largest_value = 0, size = 0;
  for (uint32_t p = 0; p < n; p++) {
    double score = 0, terms = 0;
    for (uint32_t i = 0; i < d; i++) {
      const double term = (double)q[i] * element(scene, op->k_cache, first + (size_t)p * d + i);
      score += term;
      terms += fabs(term);
    }
    scores[p] = score * (double)op->scale;
    size = fmax(size, terms * fabs((double)op->scale));
    maximum = fmax(maximum, scores[p]);
  }
  memset(want, 0, d * sizeof *want);
  for (uint32_t p = 0; p < n; p++) {
    const double weight = exp(scores[p] - maximum);
    sum += weight;
    for (uint32_t i = 0; i < d; i++) {
      const double value = element(scene, op->v_cache, first + (size_t)p * d + i);
      want[i] += weight * value;
      largest_value = fmax(largest_value, fabs(value));
    }
  }
  for (uint32_t i = 0; i < d; i++) want[i] /= sum;
  free(scores);
  return (2e-6 + 4e-7 * size) * largest_value;
}

static void attention_case(const struct cx_row *row, struct shape s, int placement) {
  const uint32_t width = s.n_heads * s.head_dim;
  const size_t n_elements = (size_t)N_SLOTS * s.n_kv_heads * s.context * s.head_dim;
  struct scene scene;
  begin_case("kind %d, %u heads, %u kv heads of %u, %u rows, context %u, cache types %u and %u, placement %d", (int)s.kind, s.n_heads,
             s.n_kv_heads, s.head_dim, s.n_rows, s.context, s.key_type, s.value_type, placement);
  scene_begin(&scene, placement, s.n_rows, 0);
  struct cx_op_attention op = {
      .head = {.op = CX_OP_ATTENTION}, .n_heads = s.n_heads, .n_kv_heads = s.n_kv_heads, .head_dim = s.head_dim,
      .context = s.context, .n_slots = N_SLOTS, .scale = (float)(1 / sqrt(s.head_dim)), .q_stride = stride_for(width),
      .y_stride = stride_for(width) + 16,
  };
  op.q = add_normal(&scene, s.n_rows, width, op.q_stride, s.kind == ONE_HOT ? 60 : 1, 0);
  op.y = add_rows(&scene, s.n_rows, width, op.y_stride, 1);
  op.k_cache = add_bytes(&scene, s.key_type, n_elements * (s.key_type == 0 ? 4 : 2), 0);
  op.v_cache = add_bytes(&scene, s.value_type, n_elements * (s.value_type == 0 ? 4 : 2), 0);
  place_rows(&scene, &s);
  fill_caches(&scene, &op, &s);
  const struct row_ref refs[] = {{offsetof(struct cx_op_attention, q), op.q_stride}, {offsetof(struct cx_op_attention, y), op.y_stride}};
  settle(&scene, row, CX_OP_ATTENTION, &op, sizeof op, refs, 2);
  double want[512];
  for (uint32_t r = 0; r < s.n_rows; r++)
    for (uint32_t h = 0; h < s.n_heads; h++) {
      const double allowed = attend(&scene, &op, r, h, want);
      const float *got = row_at(&scene, op.y, r, op.y_stride) + (size_t)h * s.head_dim;
      for (uint32_t i = 0; i < s.head_dim; i++) expect_near("element", h * s.head_dim + i, got[i], want[i], allowed);
    }
  scene_end(&scene);
}

void check_attention(const struct cx_row *row) {
  const uint32_t dims[] = {1, 2, 7, 8, 12, 16, 20, 33, 40, 64, 80, 100, 128, 256};
  const uint32_t heads[][2] = {{9, 3}, {4, 2}, {2, 2}, {12, 1}};
  const uint32_t lengths[][2] = {{1, 1}, {1, 64}, {1, 65}, {2, 63}, {9, 70}, {21, 130}, {40, 200}};
  for (uint32_t c = 0; c < 84; c++) {
    const uint32_t *h = heads[c % 4], *l = lengths[c % 7];
    struct shape shape = {h[0], h[1], dims[c % 14], l[0], l[1], 0, 0, (enum kind)(c % N_KINDS)};
    if (c / 4 % 2) shape.key_type = shape.value_type = 30;
    if (c % 13 == 0) shape.value_type = 30 - shape.value_type;
    attention_case(row, shape, (int)(c / 2 + c / 7) % 2);
  }
}
