/* CX_OP_QUANTIZE, CX_OP_LINEAR_INT8 and CX_OP_GATED_LINEAR_INT8: the linear ops for those who prefer speed to exact
 * activations. Needs matmul.h for its jobs and what becomes of sums.
 *
 * Activations are whole numbers in groups of 32 (struct cx_int8_group), weights the codes of their type, so that a
 * group's products add up in integers, exactly. What an output is, on every row of instructions and however the work is
 * cut: over groups 0, 1, 2 ... of k,
 *
 *   sum = sum + (scale * codes . q) * x.scale                            codes with their offset taken off
 *   sum = sum + (scale * codes . q + minimum * x.sum) * x.scale          types with a minimum
 *   sum = sum + (scale0 * first 16 + scale1 * last 16) * x.scale         q6_k, whose groups are half as long
 *
 * in f32, each operation rounded by itself; then bias, residual and gate as in matmul.h.
 *
 * CX_LANES weight rows are unpacked into panels, which stay in the nearest cache, and multiplied with all activation
 * rows, some at a time: one output a lane. One row takes the same way as hundreds.
 */
#ifndef CX_INT8_H
#define CX_INT8_H

#define INT8_COLUMNS 1024 /* of panels that are unpacked at once, a multiple of 256 */
#define INT8_ROW_BLOCK 128 /* most activation rows of an item */
#define INT8_ROWS (CX_LANES == 16 ? 12 : 4) /* activation rows that meet a panel while it is in registers */

/* --- activations ----------------------------------------------------------------------------------------------------
 */

/* A group with a number that is not finite makes whatever it is part of a NaN. */
static void quantize_group(const float *x, struct cx_int8_group *to) {
  vf v[CX_FLOATS_32], most = vf_zero(), not_finite = vf_zero();
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) {
    v[i] = vf_load(x + CX_LANES * i);
    most = vf_max(most, vf_max(v[i], vf_sub(vf_zero(), v[i])));
    not_finite = vf_add(not_finite, vf_sub(v[i], v[i]));
  }
  const float largest = vf_hmax(most), bad = vf_sum(not_finite);
  const float inverse = largest > 0x1p-100f ? 127.0f / largest : 0.0f; /* 127 / largest may be infinite below */
  vf sums[2] = {vf_zero(), vf_zero()};
  to->scale = largest / 127.0f + bad;
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) {
    const vf whole = bad == 0 ? vf_round(vf_mul(v[i], vf_set1(inverse))) : vf_zero();
    vf_store_i8(to->q + CX_LANES * i, whole);
    sums[i * CX_LANES / 16] = vf_add(sums[i * CX_LANES / 16], whole);
  }
  to->halves[0] = vf_sum(sums[0]);
  to->halves[1] = vf_sum(sums[1]);
  to->sum = to->halves[0] + to->halves[1];
}

static uint32_t quantize_items(const void *op, const struct cx_run *run) {
  const struct cx_op_quantize *o = op;
  return items_of_rows(cx_run_rows(&o->head, run), rows_per_item(o->dim));
}

static void quantize_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_quantize *o = op;
  const uint32_t per_item = rows_per_item(o->dim), last = rows_end(cx_run_rows(&o->head, run), per_item, end);
  const float *x = cx_at(run, o->x);
  float *y = cx_at(run, o->y);
  (void)scratch;
  for (uint32_t row = begin * per_item; row < last; row++) {
    struct cx_int8_group *groups = (struct cx_int8_group *)(y + (size_t)row * o->y_stride);
    for (uint32_t g = 0; g < o->dim / 32; g++) quantize_group(x + (size_t)row * o->x_stride + 32 * g, groups + g);
  }
}

/* --- a weight type --------------------------------------------------------------------------------------------------
 */

/* How a panel's factors are meant. */
enum factors { SCALE, SCALE_MINIMUM, SCALES };

/* What is constant for a type: the largest code (in the sense of vi_dots), and what a code has too much. */
struct coding {
  enum factors factors;
  int most, offset;
};

/* codes . q of n of each, with the offset taken off: exact, since nothing here reaches 2^24. */
CX_INLINE vf code_product(struct coding coding, const vi *codes, const int8_t *q, size_t n, const float *sum) {
  const vf product = vi_floats(vi_dots(codes, q, n, coding.most));
  return coding.offset == 0 ? product : vf_fma(vf_set1(*sum), vf_set1((float)-coding.offset), product);
}

/* What one group adds to CX_LANES outputs. */
CX_INLINE vf group_product(struct coding coding, const struct panel *panel, const struct cx_int8_group *x) {
  vf sum;
  if (coding.factors == SCALES) {
    const vf first = code_product(coding, panel->codes, x->q, 4, &x->halves[0]);
    const vf last = code_product(coding, panel->codes + 4, x->q + 16, 4, &x->halves[1]);
    sum = vf_add(vf_mul(panel->factors[0], first), vf_mul(panel->factors[1], last));
  } else {
    sum = vf_mul(panel->factors[0], code_product(coding, panel->codes, x->q, 8, &x->sum));
    if (coding.factors == SCALE_MINIMUM) sum = vf_add(sum, vf_mul(panel->factors[1], vf_set1(x->sum)));
  }
  return vf_mul(sum, vf_set1(x->scale));
}

/* totals[n] += panels[n_groups] times the groups of n rows that stand x_bytes apart; n a constant. */
CX_INLINE void multiply_panels(struct coding coding, const struct panel *restrict panels, const uint8_t *x,
                               size_t x_bytes, size_t n_groups, size_t n, vf *restrict totals) {
  vf total[INT8_ROWS];
  CX_UNROLL for (size_t r = 0; r < n; r++) total[r] = totals[r];
  for (size_t g = 0; g < n_groups; g++) {
    const struct panel *panel = &panels[g];
    CX_UNROLL for (size_t r = 0; r < n; r++) {
      const struct cx_int8_group *group = (const struct cx_int8_group *)(x + r * x_bytes) + g;
      total[r] = vf_add(total[r], group_product(coding, panel, group));
    }
  }
  CX_UNROLL for (size_t r = 0; r < n; r++) totals[r] = total[r];
}

/* The same for any number of rows. */
CX_INLINE void multiply_all(struct coding coding, const struct panel *panels, const uint8_t *x, size_t x_bytes,
                            size_t n_groups, size_t n_rows, vf *totals) {
  size_t r = 0;
  for (; n_rows - r >= INT8_ROWS; r += INT8_ROWS)
    multiply_panels(coding, panels, x + r * x_bytes, x_bytes, n_groups, INT8_ROWS, totals + r);
  for (; INT8_ROWS > 4 && n_rows - r >= 4; r += 4)
    multiply_panels(coding, panels, x + r * x_bytes, x_bytes, n_groups, 4, totals + r);
  for (; r < n_rows; r++) multiply_panels(coding, panels, x + r * x_bytes, x_bytes, n_groups, 1, totals + r);
}

/* Panels of n_blocks blocks of CX_LANES rows, asking meanwhile for as much of the rows behind them. */
CX_INLINE void unpack_blocks(void (*unpack_block)(const uint8_t *block, size_t stride, struct panel *out),
                             size_t elements, size_t bytes, const uint8_t *rows, size_t stride, const uint8_t *next,
                             size_t n_blocks, struct panel *panels) {
  for (size_t b = 0; b < n_blocks; b++) {
    CX_UNROLL for (size_t line = 0; line < CX_LANES * bytes; line += 64)
      cx_prefetch_later(bytes_ahead(next, b * CX_LANES * bytes + line));
    unpack_block(rows + b * bytes, stride, panels + b * (elements / 32));
  }
}

#define FUNCTIONS(name, factors, most, offset)                                                                  \
  static CX_NOINLINE void unpack_int8_##name(const uint8_t *rows, size_t stride, const uint8_t *next, size_t n, \
                                             struct panel *panels) {                                            \
    unpack_blocks(cx_##name##_panel, weight_types[cx_type_##name].block_elements, sizeof(struct cx_##name),     \
                  rows, stride, next, n, panels);                                                               \
  }                                                                                                             \
  static CX_NOINLINE void multiply_int8_##name(const struct panel *panels, const uint8_t *x, size_t x_bytes,    \
                                               size_t n_groups, size_t n_rows, vf *totals) {                    \
    multiply_all((struct coding){factors, most, offset}, panels, x, x_bytes, n_groups, n_rows, totals);         \
  }
CX_INT8_QUANTS(FUNCTIONS)
#undef FUNCTIONS

/* By type number. */
struct int8_type {
  void (*unpack)(const uint8_t *rows, size_t stride, const uint8_t *next, size_t n_blocks, struct panel *panels);
  void (*multiply)(const struct panel *panels, const uint8_t *x, size_t x_bytes, size_t n_groups, size_t n_rows,
                   vf *totals);
};
#define TYPE(name, factors, most, offset) [cx_type_##name] = {unpack_int8_##name, multiply_int8_##name},
static const struct int8_type int8_types[] = {CX_INT8_QUANTS(TYPE)};
#undef TYPE

/* --- items ----------------------------------------------------------------------------------------------------------
 */

/* What a thread needs: panels, the sums of one or two products, and room for rows that do not fill a panel. */
struct int8_scratch {
  struct panel panels[INT8_COLUMNS / 32];
  vf totals[2][INT8_ROW_BLOCK];
  uint8_t rows[]; /* [CX_LANES, row bytes] */
};

/* [row block][product][CX_LANES outputs] */
static struct cut int8_cut_of(const struct job *job) {
  struct cut cut = {.outputs = CX_LANES, .row_block = INT8_ROW_BLOCK};
  cut.row_blocks = divide_up(job->n_rows, INT8_ROW_BLOCK);
  const size_t n_cut = job->is_gated ? 1 : job->n_products;
  for (size_t p = 0; p < n_cut; p++) cut.weight_blocks += divide_up(job->products[p].n, cut.outputs);
  return cut;
}

/* totals[n_rows] of one product of a piece. */
static void int8_product(const struct cx_run *run, const struct job *job, const struct product *product,
                         const struct piece *piece, struct int8_scratch *scratch, vf *totals) {
  const struct int8_type *type = &int8_types[product->weight.type];
  const size_t elements = weight_types[product->weight.type].block_elements, x_bytes = job->x_stride * sizeof(float);
  const struct weights weights = weights_at(run, product->weight, job->k, piece->first);
  const size_t row_bytes = weights.row_bytes, block_bytes = weight_types[product->weight.type].block_bytes;
  const uint8_t *rows = weights.first, *next = bytes_ahead(rows, CX_LANES * row_bytes);
  const uint8_t *x = (const uint8_t *)job->x + piece->row * x_bytes;
  if (piece->n < CX_LANES) {
    memset(scratch->rows, 0, CX_LANES * row_bytes);
    memcpy(scratch->rows, rows, piece->n * row_bytes);
    rows = scratch->rows;
  }
  for (size_t r = 0; r < piece->n_rows; r++) totals[r] = vf_zero();
  for (size_t begin = 0; begin < job->k; begin += INT8_COLUMNS) {
    const size_t columns = job->k - begin < INT8_COLUMNS ? job->k - begin : INT8_COLUMNS;
    const size_t at = begin / elements * block_bytes;
    type->unpack(rows + at, row_bytes, bytes_ahead(next, CX_LANES * at), columns / elements, scratch->panels);
    type->multiply(scratch->panels, x + begin / 32 * sizeof(struct cx_int8_group), x_bytes, columns / 32, piece->n_rows,
                   totals);
  }
}

static void int8_finish(const struct job *job, const struct piece *piece, size_t r, vf total, vf up) {
  const struct product *product = job->is_gated ? &job->products[1] : piece->product;
  const size_t row = piece->row + r;
  vf v = total;
  if (job->is_gated) v = vf_mul(silu(total), up);
  if (product->bias != NULL) v = vf_add(v, vf_load_n(product->bias + piece->first, piece->n));
  if (product->residual != NULL)
    v = vf_add(vf_load_n(product->residual + row * product->residual_stride + piece->first, piece->n), v);
  vf_store_n(product->y + row * product->y_stride + piece->first, v, piece->n);
}

static void run_int8_items(const struct cx_run *run, const struct job *job, uint32_t begin, uint32_t end,
                           struct int8_scratch *scratch) {
  const struct cut cut = int8_cut_of(job);
  for (uint32_t item = begin; item < end; item++) {
    const struct piece piece = piece_of(job, &cut, item);
    int8_product(run, job, piece.product, &piece, scratch, scratch->totals[0]);
    if (job->is_gated) int8_product(run, job, &job->products[1], &piece, scratch, scratch->totals[1]);
    for (size_t r = 0; r < piece.n_rows; r++)
      int8_finish(job, &piece, r, scratch->totals[0][r], scratch->totals[1][r]);
  }
}

static uint32_t count_int8_items(const struct job *job) {
  const struct cut cut = int8_cut_of(job);
  return (uint32_t)(cut.row_blocks * cut.weight_blocks);
}

/* No type takes more bytes than q8_0. */
static uint64_t int8_scratch_for(size_t k) { return sizeof(struct int8_scratch) + CX_LANES * (k / 32 * 34); }

/* --- the ops --------------------------------------------------------------------------------------------------------
 */

static uint32_t linear_int8_items(const void *op, const struct cx_run *run) {
  const struct job job = linear_job(op, run);
  return count_int8_items(&job);
}

static void linear_int8_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct job job = linear_job(op, run);
  run_int8_items(run, &job, begin, end, scratch);
}

static uint64_t linear_int8_scratch_bytes(const void *op, uint32_t max_rows) {
  (void)max_rows;
  return int8_scratch_for(((const struct cx_op_linear *)op)->k);
}

static uint32_t gated_linear_int8_items(const void *op, const struct cx_run *run) {
  const struct job job = gated_linear_job(op, run);
  return count_int8_items(&job);
}

static void gated_linear_int8_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end,
                                  void *scratch) {
  const struct job job = gated_linear_job(op, run);
  run_int8_items(run, &job, begin, end, scratch);
}

static uint64_t gated_linear_int8_scratch_bytes(const void *op, uint32_t max_rows) {
  (void)max_rows;
  return int8_scratch_for(((const struct cx_op_gated_linear *)op)->k);
}

#endif
