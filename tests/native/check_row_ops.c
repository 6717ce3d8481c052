/* The checks of decoders and of ops that treat each row alike: embed, select_rows, rms_norm, rope_angles, rope_store. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* is_wild leaves scales as random bits: infinite, NaN and subnormal ones too. Which NaN a product gives is the processor's choice. */
static void decode_case(const struct cx_row *row, int index, size_t n, int is_wild, int placement) {
  const struct cx_quant_info *type = cx_quant_at(index);
  const size_t bytes = n / type->block_elements * type->block_bytes;
  struct scene scene;
  begin_case("%s, %zu elements, wild %d, placement %d", type->name, n, is_wild, placement);
  scene_begin(&scene, placement, 1, 1);
  uint8_t *blocks = at(&scene, add_bytes(&scene, type->id, bytes, 0));
  float *got = at(&scene, add_rows(&scene, 1, (uint32_t)n, 0, 1)), *want = at(&scene, add_rows(&scene, 1, (uint32_t)n, 0, 1));
  if (is_wild) fill_bytes(blocks, bytes);
  else fill_blocks(type, blocks, bytes);
  cx_quant_decode(type->id, blocks, n, want);
  row->decode[index](blocks, n, got);
  for (size_t i = 0; i < n; i++) {
    const int both_nan = isnan(got[i]) && isnan(want[i]);
    if (!both_nan && memcmp(&got[i], &want[i], sizeof *got) != 0)
      fail("element %zu: got %.9g, want %.9g", i, (double)got[i], (double)want[i]);
  }
  scene_end(&scene);
}

void check_decode(const struct cx_row *row) {
  for (int index = 0; index < cx_quant_count(); index++) {
    const size_t elements = cx_quant_at(index)->block_elements;
    for (size_t n_blocks = 1; n_blocks < 12; n_blocks++) {
      const size_t n = n_blocks * elements * (elements == 1 ? 29 : 1);
      for (int way = 0; way < 4; way++) decode_case(row, index, n, way / 2, way % 2);
    }
    decode_case(row, index, 2000 * (elements == 1 ? 32 : elements), 1, AT_END);
  }
}

static void embed_case(const struct cx_row *row, const struct cx_quant_info *type, uint32_t dim, uint32_t n_rows, int placement) {
  const uint32_t vocab = 11, stride = stride_for(dim);
  const size_t line = (size_t)dim / type->block_elements * type->block_bytes;
  struct scene scene;
  begin_case("%s, dim %u, %u rows, placement %d", type->name, dim, n_rows, placement);
  scene_begin(&scene, placement, n_rows, 0);
  for (uint32_t i = 0; i < n_rows; i++) scene.tokens[i] = i == 0 ? vocab - 1 : random_below(vocab);
  struct cx_op_embed op = {.head = {.op = CX_OP_EMBED}, .dim = dim, .vocab = vocab, .y_stride = stride};
  op.table = add_bytes(&scene, type->id, vocab * line, 0);
  op.y = add_rows(&scene, n_rows, dim, stride, 1);
  uint8_t *table = at(&scene, op.table);
  fill_blocks(type, table, vocab * line);
  settle(&scene, row, CX_OP_EMBED, &op, sizeof op, (const struct row_ref[]){{offsetof(struct cx_op_embed, y), stride}}, 1);
  float *want = malloc(dim * sizeof *want);
  for (uint32_t r = 0; r < n_rows; r++) {
    cx_quant_decode(type->id, table + scene.tokens[r] * line, dim, want);
    if (memcmp(want, row_at(&scene, op.y, r, stride), dim * sizeof *want) != 0) fail("row %u differs from the plain decoder", r);
  }
  free(want);
  scene_end(&scene);
}

void check_embed(const struct cx_row *row) {
  for (int index = 0; index < cx_quant_count(); index++) {
    const struct cx_quant_info *type = cx_quant_at(index);
    const uint32_t dims[] = {type->block_elements, 3 * type->block_elements, type->block_elements == 1 ? 577 : 512};
    for (uint32_t i = 0; i < 3; i++)
      for (uint32_t n_rows = 1; n_rows < 24; n_rows += 11) embed_case(row, type, dims[i], n_rows, (int)(i + n_rows) % 2);
  }
}

void check_select_rows(const struct cx_row *row) {
  const uint32_t dims[] = {1, 7, 64, 577, 5000};
  for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
    for (int placement = AT_START; placement <= AT_END; placement++) {
      const uint32_t dim = dims[i], stride = stride_for(dim), n_out = 9;
      struct scene scene;
      begin_case("dim %u, placement %d", dim, placement);
      scene_begin(&scene, placement, 2 * n_out, n_out);
      for (uint32_t r = 0; r < n_out; r++) scene.out_rows[r] = 2 * r + random_below(2);
      struct cx_op_select_rows op = {.head = {.op = CX_OP_SELECT_ROWS, .rows = CX_ROWS_OUTPUT}, .dim = dim, .x_stride = stride, .y_stride = stride};
      op.x = add_normal(&scene, 2 * n_out, dim, stride, 1, 0);
      op.y = add_rows(&scene, n_out, dim, stride, 1);
      settle(&scene, row, CX_OP_SELECT_ROWS, &op, sizeof op, (const struct row_ref[]){{offsetof(struct cx_op_select_rows, y), stride}}, 1);
      for (uint32_t r = 0; r < n_out; r++)
        if (memcmp(row_at(&scene, op.y, r, stride), row_at(&scene, op.x, scene.out_rows[r], stride), dim * 4) != 0) fail("row %u differs", r);
      scene_end(&scene);
    }
  }
}

/* --- RMS norm ------------------------------------------------------------------------------------------------------ */

static double inverse_rms(const float *x, uint32_t n, double eps) {
  double sum = 0;
  for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return 1 / sqrt(sum / n + eps);
}

static void rms_norm_case(const struct cx_row *row, uint32_t dim, uint32_t n_rows, double spread, int placement) {
  const uint32_t stride = stride_for(dim);
  struct scene scene;
  begin_case("dim %u, %u rows, spread %g, placement %d", dim, n_rows, spread, placement);
  scene_begin(&scene, placement, n_rows, 0);
  struct cx_op_rms_norm op = {.head = {.op = CX_OP_RMS_NORM}, .dim = dim, .eps = 1e-5f, .x_stride = stride, .y_stride = stride};
  op.x = add_normal(&scene, n_rows, dim, stride, spread, 0);
  op.weight = add_normal(&scene, 1, dim, dim, 1, 0);
  op.y = add_rows(&scene, n_rows, dim, stride, 1);
  if (n_rows > 1) memset(row_at(&scene, op.x, 1, stride), 0, dim * sizeof(float)); /* eps alone */
  row_at(&scene, op.x, 0, stride)[dim - 1] *= 1000;                                /* one outlier, in the tail */
  const struct row_ref refs[] = {{offsetof(struct cx_op_rms_norm, x), stride}, {offsetof(struct cx_op_rms_norm, y), stride}};
  settle(&scene, row, CX_OP_RMS_NORM, &op, sizeof op, refs, 2);
  const float *weight = at(&scene, op.weight);
  for (uint32_t r = 0; r < n_rows; r++) {
    const float *x = row_at(&scene, op.x, r, stride), *y = row_at(&scene, op.y, r, stride);
    const double factor = inverse_rms(x, dim, (double)op.eps);
    for (uint32_t i = 0; i < dim; i++) {
      const double want = (double)x[i] * factor * (double)weight[i];
      expect_near("element", i, y[i], want, 1e-6 * fabs(want) + 1e-37); /* three roundings and the sum's */
    }
  }
  scene_end(&scene);
}

void check_rms_norm(const struct cx_row *row) {
  const uint32_t dims[] = {1, 2, 7, 8, 15, 16, 31, 33, 63, 64, 65, 127, 576, 577, 1023, 4096, 5003};
  for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
    for (uint32_t n_rows = 1; n_rows <= 18; n_rows += 17)
      for (int placement = AT_START; placement <= AT_END; placement++) {
        rms_norm_case(row, dims[i], n_rows, 1, placement);
        rms_norm_case(row, dims[i], n_rows, placement ? 1e-4 : 1e4, placement);
      }
}

/* --- rotary positions ---------------------------------------------------------------------------------------------- */

void check_rope_angles(const struct cx_row *row) {
  const uint32_t halves[] = {1, 5, 16, 32, 48, 64, 129};
  for (uint32_t c = 0; c < 2 * sizeof halves / sizeof halves[0]; c++) {
    const uint32_t half = halves[c / 2], stride = stride_for(2 * half), n_rows = 37;
    struct scene scene;
    begin_case("half %u, placement %u", half, c % 2);
    scene_begin(&scene, c % 2, n_rows, 0);
    for (uint32_t r = 0; r < n_rows; r++) scene.positions[r] = r < 20 ? r : random_below(1u << 20);
    struct cx_op_rope_angles op = {.head = {.op = CX_OP_ROPE_ANGLES}, .half = half, .y_stride = stride, .scale = c % 2 ? 1.0f : 1.1386294f};
    op.inv_freq = add_rows(&scene, 1, half, half, 0);
    op.y = add_rows(&scene, n_rows, 2 * half, stride, 1);
    float *inv_freq = at(&scene, op.inv_freq);
    for (uint32_t i = 0; i < half; i++) inv_freq[i] = (float)pow(1e5, -(double)i / half);
    settle(&scene, row, CX_OP_ROPE_ANGLES, &op, sizeof op, (const struct row_ref[]){{offsetof(struct cx_op_rope_angles, y), stride}}, 1);
    for (uint32_t r = 0; r < n_rows; r++) {
      const float *y = row_at(&scene, op.y, r, stride);
      for (uint32_t i = 0; i < half; i++) {
        const double angle = (double)((float)scene.positions[r] * inv_freq[i]);
        expect_near("cosine", i, y[i], (double)((float)cos(angle) * op.scale), 0);
        expect_near("sine", i, y[half + i], (double)((float)sin(angle) * op.scale), 0);
      }
    }
    scene_end(&scene);
  }
}

struct rope_shape {
  uint32_t n_heads, n_kv_heads, head_dim, rope_dim, style, norms;
};

/* want[head_dim] = the head, normalised where weight is given, and rotated */
static void rotate(const struct rope_shape *s, const float *head, const float *weight, double eps, const float *angles, double *want) {
  const double factor = weight ? inverse_rms(head, s->head_dim, eps) : 1;
  const uint32_t half = s->rope_dim / 2, step = s->style == CX_ROPE_HALF ? half : 1;
  double x[512];
  for (uint32_t i = 0; i < s->head_dim; i++) want[i] = x[i] = (double)head[i] * factor * (weight ? (double)weight[i] : 1);
  for (uint32_t i = 0; i < half; i++) {
    const uint32_t a = s->style == CX_ROPE_HALF ? i : 2 * i;
    const double c = (double)angles[i], n = (double)angles[half + i];
    want[a] = x[a] * c - x[a + step] * n;
    want[a + step] = x[a + step] * c + x[a] * n;
  }
}

/* The keys and values of the rows must be in their lines, and nothing elsewhere. */
static void check_caches(const struct scene *scene, const struct cx_op_rope_store *op, const struct rope_shape *s) {
  const size_t line_elements = s->head_dim, n_lines = (size_t)op->n_slots * s->n_kv_heads * op->context;
  const uint32_t size = op->k_cache.type == 0 ? 4 : 2;
  const uint8_t *k_cache = at(scene, op->k_cache), *v_cache = at(scene, op->v_cache);
  const float *k_norm = op->k_norm.arena ? at(scene, op->k_norm) : NULL;
  uint8_t *is_stored = calloc(n_lines, 1);
  double want[512];
  for (uint32_t r = 0; r < scene->run.n_rows; r++) {
    for (uint32_t h = 0; h < s->n_kv_heads; h++) {
      const size_t line = ((size_t)scene->slots[r] * s->n_kv_heads + h) * op->context + scene->positions[r];
      const float *k = row_at(scene, op->k, r, op->k_stride) + (size_t)h * s->head_dim;
      const float *v = row_at(scene, op->v, r, op->v_stride) + (size_t)h * s->head_dim;
      rotate(s, k, k_norm, (double)op->eps, row_at(scene, op->angles, r, op->angles_stride), want);
      is_stored[line] = 1;
      for (uint32_t i = 0; i < s->head_dim; i++) {
        const uint8_t *key = k_cache + (line * line_elements + i) * size, *value = v_cache + (line * line_elements + i) * size;
        const double allowed = (size == 4 ? 2e-6 : 4e-3) * (fabs(want[i]) + 1); /* half a unit of bf16 is 2^-9 */
        float got_k, got_v, want_v = size == 4 ? v[i] : as_bf16(v[i]);
        if (size == 4) memcpy(&got_k, key, 4), memcpy(&got_v, value, 4);
        else got_k = bf16_value(key), got_v = bf16_value(value);
        expect_near("key element", i, got_k, want[i], allowed);
        if (memcmp(&got_v, &want_v, 4) != 0) fail("value element %u of row %u is not what was given", i, r);
      }
    }
  }
  for (size_t b = 0; b < n_lines * line_elements * size; b++) {
    if (is_stored[b / (line_elements * size)]) continue;
    if (k_cache[b] != 0xff || v_cache[b] != 0xff) fail("line %zu of the cache was written", b / (line_elements * size));
  }
  free(is_stored);
}

static void rope_store_case(const struct cx_row *row, struct rope_shape s, uint32_t cache_type, int placement) {
  const uint32_t n_rows = 17, width = s.n_heads * s.head_dim, kv_width = s.n_kv_heads * s.head_dim;
  const size_t cache_bytes = (size_t)3 * kv_width * 9 * (cache_type == 0 ? 4 : 2);
  struct scene scene;
  begin_case("%u heads, %u kv heads of %u, rotated %u, style %u, norms %u, cache type %u, placement %d", s.n_heads, s.n_kv_heads,
             s.head_dim, s.rope_dim, s.style, s.norms, cache_type, placement);
  scene_begin(&scene, placement, n_rows, 0);
  for (uint32_t r = 0; r < n_rows; r++) scene.slots[r] = r % 2 * 2, scene.positions[r] = r / 2;
  struct cx_op_rope_store op = {
      .head = {.op = CX_OP_ROPE_STORE}, .n_heads = s.n_heads, .n_kv_heads = s.n_kv_heads, .head_dim = s.head_dim,
      .rope_dim = s.rope_dim, .style = s.style, .context = 9, .n_slots = 3, .eps = 1e-6f, .q_stride = stride_for(width),
      .k_stride = stride_for(kv_width), .v_stride = stride_for(kv_width) + 16, .angles_stride = stride_for(s.rope_dim),
  };
  op.q = add_normal(&scene, n_rows, width, op.q_stride, 1, 1);
  op.k = add_normal(&scene, n_rows, kv_width, op.k_stride, 1, 0);
  op.v = add_normal(&scene, n_rows, kv_width, op.v_stride, 1, 0);
  op.angles = add_normal(&scene, n_rows, s.rope_dim, op.angles_stride, 0.5, 0);
  if (s.norms & 1) op.q_norm = add_normal(&scene, 1, s.head_dim, s.head_dim, 1, 0);
  if (s.norms & 2) op.k_norm = add_normal(&scene, 1, s.head_dim, s.head_dim, 1, 0);
  op.k_cache = add_bytes(&scene, cache_type, cache_bytes, 1);
  op.v_cache = add_bytes(&scene, cache_type, cache_bytes, 1);
  float *before = malloc(n_rows * width * sizeof *before);
  for (uint32_t r = 0; r < n_rows; r++) memcpy(before + r * width, row_at(&scene, op.q, r, op.q_stride), width * sizeof *before);
  const struct row_ref refs[] = {
      {offsetof(struct cx_op_rope_store, q), op.q_stride}, {offsetof(struct cx_op_rope_store, k), op.k_stride},
      {offsetof(struct cx_op_rope_store, v), op.v_stride}, {offsetof(struct cx_op_rope_store, angles), op.angles_stride},
  };
  settle(&scene, row, CX_OP_ROPE_STORE, &op, sizeof op, refs, 4);
  const float *q_norm = op.q_norm.arena ? at(&scene, op.q_norm) : NULL;
  double want[512];
  for (uint32_t r = 0; r < n_rows; r++) {
    for (uint32_t h = 0; h < s.n_heads; h++) {
      const float *got = row_at(&scene, op.q, r, op.q_stride) + h * s.head_dim;
      rotate(&s, before + r * width + h * s.head_dim, q_norm, (double)op.eps, row_at(&scene, op.angles, r, op.angles_stride), want);
      for (uint32_t i = 0; i < s.head_dim; i++) expect_near("query element", h * s.head_dim + i, got[i], want[i], 2e-6 * (fabs(want[i]) + 1));
    }
  }
  check_caches(&scene, &op, &s);
  free(before);
  scene_end(&scene);
}

void check_rope_store(const struct cx_row *row) {
  const uint32_t dims[][2] = {{2, 2}, {6, 4}, {8, 8}, {15, 10}, {64, 64}, {80, 20}, {96, 96}, {128, 128}, {130, 66}, {256, 64}};
  for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
    for (uint32_t norms = 0; norms < 4; norms++)
      for (uint32_t style = CX_ROPE_HALF; style <= CX_ROPE_ADJACENT; style++) {
        const struct rope_shape shape = {norms == 1 ? 9 : 4, norms == 1 ? 3 : 2, dims[i][0], dims[i][1], style, norms};
        rope_store_case(row, shape, 0, (int)(norms + style) % 2);
        rope_store_case(row, shape, 30, (int)(norms + style + 1) % 2);
      }
}
