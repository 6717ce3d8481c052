/* The ops with int8 activations: quantize against its definition, and the two linear ops bit for bit against theirs, spelled out in
 * plain C over codes that the plain decoder gives. The definition knows no instruction set, so every row has the same bits. The product
 * is also held against that of the f32 activations, within what rounding them may cost.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "quant/quants.h"

/* --- quantize ------------------------------------------------------------------------------------------------------ */

static void quantize_plainly(const float *x, struct cx_int8_group *to) {
  float largest = 0, sums[2] = {0, 0};
  int is_finite = 1;
  for (int i = 0; i < 32; i++) {
    is_finite &= isfinite(x[i]);
    largest = fmaxf(largest, fabsf(x[i]));
  }
  const volatile float inverse = largest > 0x1p-100f ? 127 / largest : 0;
  for (int i = 0; i < 32; i++) {
    const volatile float scaled = is_finite ? x[i] * inverse : 0;
    to->q[i] = (int8_t)nearbyintf(scaled);
    sums[i / 16] += to->q[i];
  }
  to->scale = is_finite ? largest / 127 : NAN;
  to->halves[0] = sums[0], to->halves[1] = sums[1], to->sum = sums[0] + sums[1];
}

/* Equal, or two NaNs. */
static int same(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

static void quantize_case(const struct cx_row *row, uint32_t dim, uint32_t n_rows, int placement) {
  const uint32_t x_stride = stride_for(dim), width = dim / 32 * CX_INT8_GROUP_FLOATS, y_stride = stride_for(width);
  struct scene scene;
  begin_case("dim %u, %u rows, placement %d", dim, n_rows, placement);
  scene_begin(&scene, placement, n_rows, 0);
  struct cx_op_quantize op = {.head = {.op = CX_OP_QUANTIZE}, .dim = dim, .x_stride = x_stride, .y_stride = y_stride};
  op.x = add_normal(&scene, n_rows, dim, x_stride, 3, 0);
  op.y = add_rows(&scene, n_rows, width, y_stride, 1);
  static const float odd[] = {NAN, INFINITY, -INFINITY, 0, 1e-40f, 1e-32f, 1e38f, -3e38f, -0.0f};
  for (uint32_t r = 1; r < n_rows && r <= sizeof odd / sizeof odd[0]; r++) { /* row r: one odd number in a group, one alone */
    float *x = row_at(&scene, op.x, r, x_stride);
    x[random_below(32)] = odd[r - 1];
    for (uint32_t i = dim - 32; i < dim; i++) x[i] = 0;
    x[dim - 1 - random_below(32)] = odd[r - 1];
  }
  for (uint32_t i = 0; i < 32; i++) row_at(&scene, op.x, 0, x_stride)[i] = i == 0 ? 127 : (float)i * 3 - 50.5f; /* ties */
  const struct row_ref refs[] = {{offsetof(struct cx_op_quantize, x), x_stride}, {offsetof(struct cx_op_quantize, y), y_stride}};
  settle(&scene, row, CX_OP_QUANTIZE, &op, sizeof op, refs, 2);
  for (uint32_t r = 0; r < n_rows; r++) {
    const struct cx_int8_group *groups = (const void *)row_at(&scene, op.y, r, y_stride);
    for (uint32_t g = 0; g < dim / 32; g++) {
      struct cx_int8_group want;
      quantize_plainly(row_at(&scene, op.x, r, x_stride) + 32 * g, &want);
      if (!same(want.scale, groups[g].scale) || memcmp(want.q, groups[g].q, 32) != 0 || want.sum != groups[g].sum ||
          want.halves[0] != groups[g].halves[0] || want.halves[1] != groups[g].halves[1])
        fail("row %u, group %u: scale %a, sum %g; want %a, %g", r, g, (double)groups[g].scale, (double)groups[g].sum,
             (double)want.scale, (double)want.sum);
    }
  }
  scene_end(&scene);
}

void check_quantize(const struct cx_row *row) {
  const uint32_t dims[] = {32, 64, 96, 576, 4096, 4128};
  for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
    for (int placement = AT_START; placement <= AT_END; placement++) {
      quantize_case(row, dims[i], 1, placement);
      quantize_case(row, dims[i], 24, placement);
    }
}

/* --- weights as codes, a scale and a minimum -------------------------------------------------------------------------- */

/* Where a block keeps what codes are multiplied with: f16 factors (or -1), and bytes that make every group's scale 1 and minimum 0. */
static const struct layout {
  uint32_t type, group;
  int scale, minimum;
  uint32_t scales, n_scales;
  uint8_t ones[16];
} layouts[] = {
    {cx_type_q8_0, 32, 0, -1, 0, 0, {0}},
    {cx_type_q4_0, 32, 0, -1, 0, 0, {0}},
    {cx_type_q4_1, 32, 0, 2, 0, 0, {0}},
    {cx_type_q5_0, 32, 0, -1, 0, 0, {0}},
    {cx_type_q5_1, 32, 0, 2, 0, 0, {0}},
    {cx_type_q4_k, 32, 0, 2, 4, 12, {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}},
    {cx_type_q5_k, 32, 0, 2, 4, 12, {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}},
    {cx_type_q6_k, 16, 208, -1, 192, 16, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
};
#define N_LAYOUTS (sizeof layouts / sizeof layouts[0])

/* One matrix [n, k]: element e is scales[e] * codes[e] + minimums[e]. */
struct codes {
  float *codes, *scales, *minimums, *plain;
};

static void set_f16(uint8_t *block, int at, uint16_t bits) {
  if (at >= 0) memcpy(block + at, &bits, 2);
}

/* By the plain decoder alone: with all factors 1 it gives codes, with the scale 0 minimums, with the minimum 0 scales times codes. */
static void take_apart(const struct layout *layout, const uint8_t *raw, size_t elements, struct codes *out) {
  const struct cx_quant_info *info = cx_quant_find(layout->type);
  float **parts[] = {&out->codes, &out->scales, &out->minimums, &out->plain};
  for (int i = 0; i < 4; i++) *parts[i] = malloc(elements * sizeof(float));
  cx_quant_decode(layout->type, raw, elements, out->plain);
  for (size_t e = 0; e < elements; e += info->block_elements, raw += info->block_bytes) {
    uint8_t block[256];
    memcpy(block, raw, info->block_bytes);
    set_f16(block, layout->minimum, 0);
    cx_quant_decode(layout->type, block, info->block_elements, out->scales + e);
    set_f16(block, layout->scale, 0x3c00);
    memcpy(block + layout->scales, layout->ones, layout->n_scales);
    cx_quant_decode(layout->type, block, info->block_elements, out->codes + e);
    memcpy(block, raw, info->block_bytes);
    set_f16(block, layout->scale, 0);
    cx_quant_decode(layout->type, block, info->block_elements, out->minimums + e);
    if (layout->minimum < 0) memset(out->minimums + e, 0, info->block_elements * sizeof(float));
  }
  for (size_t e = 0; e < elements; e += layout->group) {
    float scale = 0;
    for (size_t i = e; i < e + layout->group; i++)
      if (out->codes[i] != 0) scale = out->scales[i] / out->codes[i]; /* exact: the products have at most 24 bits */
    for (size_t i = e; i < e + layout->group; i++) out->scales[i] = scale;
  }
}

static void free_codes(struct codes *codes) { free(codes->codes), free(codes->scales), free(codes->minimums), free(codes->plain); }

/* The definition in kernels/int8.h of one output; w is the first element of its weight row. */
static float defined_sum(const struct layout *layout, const struct codes *codes, size_t w, const struct cx_int8_group *x, uint32_t k) {
  volatile float sum = 0;
  for (uint32_t g = 0; g < k / 32; g++) {
    int32_t products[2] = {0, 0};
    for (uint32_t i = 0; i < 32; i++) products[i / 16] += (int32_t)codes->codes[w + 32 * g + i] * x[g].q[i];
    const float *scales = codes->scales + w + 32 * g;
    volatile float first, last = 0;
    if (layout->group == 16) {
      first = scales[0] * (float)products[0];
      last = scales[16] * (float)products[1];
    } else {
      first = scales[0] * (float)(products[0] + products[1]);
      if (layout->minimum >= 0) last = codes->minimums[w + 32 * g] * x[g].sum;
    }
    volatile float both = layout->group == 16 || layout->minimum >= 0 ? first + last : first;
    both = both * x[g].scale;
    sum = sum + both;
  }
  return sum;
}

/* --- the linear ops --------------------------------------------------------------------------------------------------- */

struct input {
  struct cx_ref ref, plain; /* groups, and the f32 rows they were made of */
  uint32_t stride, plain_stride;
};

static struct input add_input(struct scene *scene, uint32_t n_rows, uint32_t k) {
  struct input input = {.stride = stride_for(k / 32 * CX_INT8_GROUP_FLOATS), .plain_stride = stride_for(k)};
  input.plain = add_normal(scene, n_rows, k, input.plain_stride, 1, 0);
  input.ref = add_rows(scene, n_rows, k / 32 * CX_INT8_GROUP_FLOATS, input.stride, 0);
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t g = 0; g < k / 32; g++) {
      float *x = row_at(scene, input.plain, r, input.plain_stride) + 32 * g;
      if (random_below(16) == 0)
        for (int i = 0; i < 32; i++) x[i] = random_below(2) ? 1.5f : -1.5f; /* the largest codes there are */
      quantize_plainly(x, (struct cx_int8_group *)row_at(scene, input.ref, r, input.stride) + g);
    }
  return input;
}

static struct cx_ref add_weight(struct scene *scene, const struct layout *layout, uint32_t n, uint32_t k, struct codes *codes) {
  const struct cx_quant_info *info = cx_quant_find(layout->type);
  const size_t bytes = (size_t)n * (k / info->block_elements) * info->block_bytes;
  const struct cx_ref ref = add_bytes(scene, layout->type, bytes, 0);
  fill_blocks(info, at(scene, ref), bytes);
  if (layout->type == cx_type_q8_0) memset((uint8_t *)at(scene, ref) + 2, 0x80, 32); /* -128, which files may hold */
  if (layout->type != cx_type_q8_0 && layout->type != cx_type_q6_k)
    memset((uint8_t *)at(scene, ref) + info->block_bytes - 16, 0xff, 16); /* the largest codes */
  take_apart(layout, at(scene, ref), (size_t)n * k, codes);
  return ref;
}

/* Within what rounding x to whole numbers may cost: half a step for each element. */
static void expect_close(const struct scene *scene, const struct codes *codes, size_t w, const struct input *input, uint32_t r,
                         uint32_t k, double got) {
  const float *x = row_at(scene, input->plain, r, input->plain_stride);
  const struct cx_int8_group *groups = (const void *)row_at(scene, input->ref, r, input->stride);
  double want = 0, allowed = 0;
  for (uint32_t i = 0; i < k; i++) {
    want += (double)codes->plain[w + i] * (double)x[i];
    allowed += fabs((double)codes->plain[w + i]) * ((double)groups[i / 32].scale * 0.5001 + fabs((double)x[i]) * 1e-5);
  }
  expect_near("product with f32 activations", r, got, want, allowed + 1e-3);
}

static void linear_case(const struct cx_row *row, const struct layout *layout, uint32_t k, uint32_t n, uint32_t n_rows, int placement) {
  struct scene scene;
  struct codes codes[2];
  begin_case("%s, k %u, n %u, %u rows, placement %d", cx_quant_find(layout->type)->name, k, n, n_rows, placement);
  scene_begin(&scene, placement, n_rows, 0);
  const struct input x = add_input(&scene, n_rows, k);
  const int with_bias = placement == AT_END, in_place = random_below(2) != 0;
  const uint32_t strides[2] = {stride_for(n), stride_for(n + 1)};
  struct cx_op_linear op = {.head = {.op = CX_OP_LINEAR_INT8}, .k = k, .x_stride = x.stride, .x = x.ref};
  op.n_parts = with_bias ? 2 : 1; /* or with a residual */
  for (uint32_t i = 0; i < op.n_parts; i++) {
    struct cx_linear_part *part = &op.parts[i];
    part->n = n + i, part->y_stride = strides[i];
    part->weight = add_weight(&scene, layout, part->n, k, &codes[i]);
    part->y = add_rows(&scene, n_rows, part->n, part->y_stride, 1);
    if (with_bias) part->bias = add_normal(&scene, 1, part->n, part->n, 5, 0);
  }
  const struct cx_ref residual = add_normal(&scene, n_rows, n, strides[0], 5, 0);
  if (!with_bias) {
    op.residual = in_place ? op.parts[0].y : residual, op.residual_stride = strides[0];
    if (in_place)
      for (uint32_t r = 0; r < n_rows; r++)
        memcpy(row_at(&scene, op.parts[0].y, r, strides[0]), row_at(&scene, residual, r, strides[0]), n * sizeof(float));
  }
  const struct row_ref refs[] = {{offsetof(struct cx_op_linear, x), x.stride},
                                 {offsetof(struct cx_op_linear, residual), strides[0]},
                                 {offsetof(struct cx_op_linear, parts[0].y), strides[0]},
                                 {offsetof(struct cx_op_linear, parts[1].y), strides[1]}};
  settle(&scene, row, CX_OP_LINEAR_INT8, &op, sizeof op, refs, with_bias ? 4 : 3);
  for (uint32_t p = 0; p < op.n_parts; p++) {
    for (uint32_t r = 0; r < n_rows; r++) {
      for (uint32_t i = 0; i < op.parts[p].n; i++) {
        const struct cx_int8_group *groups = (const void *)row_at(&scene, x.ref, r, x.stride);
        const float got = row_at(&scene, op.parts[p].y, r, strides[p])[i];
        const float added = with_bias ? ((float *)at(&scene, op.parts[p].bias))[i] : row_at(&scene, residual, r, strides[0])[i];
        const volatile float sum = defined_sum(layout, &codes[p], (size_t)i * k, groups, k);
        const float want = with_bias ? sum + added : added + sum;
        if (memcmp(&got, &want, sizeof got) != 0)
          fail("part %u, y[%u][%u] is %a, by definition %a", p, r, i, (double)got, (double)want);
        expect_close(&scene, &codes[p], (size_t)i * k, &x, r, k, (double)got - (double)added);
      }
    }
    free_codes(&codes[p]);
  }
  scene_end(&scene);
}

static void gated_case(const struct cx_row *row, const struct layout *layout, uint32_t k, uint32_t n, uint32_t n_rows, int placement) {
  const struct layout *other = &layouts[random_below(k % 256 == 0 ? N_LAYOUTS : 5)]; /* gate and up may differ */
  const uint32_t stride = stride_for(n);
  struct scene scene;
  struct codes gate, up;
  begin_case("%s and %s, k %u, n %u, %u rows, placement %d", cx_quant_find(layout->type)->name, cx_quant_find(other->type)->name, k, n,
             n_rows, placement);
  scene_begin(&scene, placement, n_rows, 0);
  const struct input x = add_input(&scene, n_rows, k);
  struct cx_op_gated_linear op = {.head = {.op = CX_OP_GATED_LINEAR_INT8}, .k = k, .n = n, .x_stride = x.stride, .y_stride = stride,
                                  .act = CX_ACT_SILU, .x = x.ref};
  op.gate = add_weight(&scene, layout, n, k, &gate);
  op.up = add_weight(&scene, other, n, k, &up);
  op.y = add_rows(&scene, n_rows, n, stride, 1);
  const struct row_ref refs[] = {{offsetof(struct cx_op_gated_linear, x), x.stride}, {offsetof(struct cx_op_gated_linear, y), stride}};
  settle(&scene, row, CX_OP_GATED_LINEAR_INT8, &op, sizeof op, refs, 2);
  for (uint32_t r = 0; r < n_rows; r++) {
    const struct cx_int8_group *groups = (const void *)row_at(&scene, x.ref, r, x.stride);
    for (uint32_t i = 0; i < n; i++) {
      const double g = (double)defined_sum(layout, &gate, (size_t)i * k, groups, k);
      const double u = (double)defined_sum(other, &up, (size_t)i * k, groups, k), want = g / (1 + exp(-g)) * u;
      expect_near("y", i, (double)row_at(&scene, op.y, r, stride)[i], want, fabs(want) * 0x1p-21 + fabs(u) * 0x1p-121);
    }
  }
  free_codes(&gate), free_codes(&up);
  scene_end(&scene);
}

static void for_all_shapes(const struct cx_row *row,
                           void (*run_case)(const struct cx_row *, const struct layout *, uint32_t, uint32_t, uint32_t, int)) {
  static const uint32_t shapes[][3] = {{1, 1, 1}, {1, 5, 3}, {2, 16, 1}, {3, 33, 12}, {9, 70, 23}, {1, 16, 150}, {4, 40, 5}};
  for (size_t t = 0; t < N_LAYOUTS; t++) {
    const uint32_t step = cx_quant_find(layouts[t].type)->block_elements;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
      for (int placement = AT_START; placement <= AT_END; placement++)
        run_case(row, &layouts[t], step * shapes[s][0] + (step == 32 && s == 4 ? 32 * 32 : 0), shapes[s][1], shapes[s][2], placement);
  }
}

void check_linear_int8(const struct cx_row *row) { for_all_shapes(row, linear_case); }
void check_gated_linear_int8(const struct cx_row *row) { for_all_shapes(row, gated_case); }
