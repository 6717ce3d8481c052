/* CX_OP_LINEAR and CX_OP_GATED_LINEAR over every weight type: y[R, n] = x[R, k] . weight[n, k]^T and what is fused to
 * it.
 *
 * What an output is, whatever the path: one accumulator vector over vectors 0, 1, 2 ... of k in order (weights.h), its
 * lanes summed in vf_sum's order, then + bias, then residual + that; or silu(gate) * up. So a row's bits depend on that
 * row alone: not on how many rows share the step, where a tile begins, or which thread has it.
 *
 * Two paths. Few rows: weights are multiplied as they are decoded, in registers. Many rows: a tile of weight rows is
 * decoded into scratch, which stays in the first-level cache, and multiplied with the activations a register tile at a
 * time. An item is a block of weight rows times a block of activation rows; its accumulators are kept as vectors until
 * it is finished, so that the lanes of many are summed at once.
 */
#ifndef CX_MATMUL_H
#define CX_MATMUL_H

#define DOT_MOST (CX_LANES == 16 ? 8 : DOT_INPUTS) /* rows that are few */
#define DOT_ITEM 16                                /* outputs of an item of few rows; a multiple of DOT_ROWS */
#define TILE_ITEM (8 * CX_TILE_WEIGHTS)            /* outputs of an item of many rows */
#define ROW_BLOCK 64 /* most activation rows of an item: with TILE_K columns they stay in the second-level cache */
#define TILE_K 1024  /* most columns of a tile, a multiple of 256: 24 KiB at 6 rows */

/* One weight matrix and what becomes of its product. */
struct product {
  struct cx_ref weight;
  const float *bias, *residual; /* or NULL; bias[n], residual[R, n] */
  float *y;                     /* [R, n] */
  size_t n, y_stride, residual_stride;
};

/* The product of x[R, k] with up to three weights (linear), or with gate and up (gated). */
struct job {
  struct product products[CX_LINEAR_PARTS];
  const float *x;
  size_t n_products, n_rows, k, x_stride;
  int is_gated;
};

CX_INLINE size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

/* --- the register tile ----------------------------------------------------------------------------------------------
 */

/* sums[row][.. CX_TILE_WEIGHTS] += tile[vectors][CX_TILE_WEIGHTS][CX_LANES] times x[n_rows, k], n_rows a constant up to
 * CX_TILE_ROWS; sums' rows stand sums_stride vectors apart. They start at zero when is_first. */
CX_INLINE void multiply(const float *restrict tile, const float *restrict x, size_t x_stride, size_t k, size_t n_rows,
                        int is_first, vf *restrict sums, size_t sums_stride) {
  vf total[CX_TILE_ROWS][CX_TILE_WEIGHTS];
  CX_UNROLL for (size_t r = 0; r < n_rows; r++)
    CX_UNROLL for (size_t w = 0; w < CX_TILE_WEIGHTS; w++) total[r][w] = is_first ? vf_zero() : sums[r * sums_stride + w];
  size_t i = 0;
  for (; k - i >= CX_LANES; i += CX_LANES) {
    vf inputs[CX_TILE_ROWS];
    CX_UNROLL for (size_t r = 0; r < n_rows; r++) inputs[r] = vf_load(x + r * x_stride + i);
    CX_UNROLL for (size_t w = 0; w < CX_TILE_WEIGHTS; w++) {
      const vf weight = vf_keep(vf_load(tile + i * CX_TILE_WEIGHTS + w * CX_LANES));
      CX_UNROLL for (size_t r = 0; r < n_rows; r++) total[r][w] = vf_fma(weight, inputs[r], total[r][w]);
    }
  }
  if (i < k) {
    CX_UNROLL for (size_t w = 0; w < CX_TILE_WEIGHTS; w++) {
      const vf weight = vf_load(tile + i * CX_TILE_WEIGHTS + w * CX_LANES);
      CX_UNROLL for (size_t r = 0; r < n_rows; r++)
        total[r][w] = vf_fma(weight, vf_load_n(x + r * x_stride + i, k - i), total[r][w]);
    }
  }
  CX_UNROLL for (size_t r = 0; r < n_rows; r++)
    CX_UNROLL for (size_t w = 0; w < CX_TILE_WEIGHTS; w++) sums[r * sums_stride + w] = total[r][w];
}

/* Memory that will be read next: n_lines cache lines from the start of each of n rows. */
struct upcoming {
  const uint8_t *first;
  size_t row_bytes, n, n_lines;
};

/* Asks for lines [begin, end) of every row. */
CX_INLINE void ask_for(const struct upcoming *upcoming, size_t begin, size_t end) {
  for (size_t r = 0; r < upcoming->n; r++)
    for (size_t line = begin; line < end; line++)
      cx_prefetch_later(bytes_ahead(upcoming->first, r * upcoming->row_bytes + line * 64));
}

/* The same for any number of rows, asking for what comes next meanwhile. Not inlined: this is the one copy of the hot
 * loop. */
static CX_NOINLINE void multiply_rows(const float *tile, const float *x, size_t x_stride, size_t k, size_t n_rows,
                                      int is_first, vf *sums, size_t sums_stride, const struct upcoming *upcoming) {
  const size_t each = divide_up(upcoming->n_lines, divide_up(n_rows, CX_TILE_ROWS));
  size_t r = 0, asked = 0;
  for (; n_rows - r >= CX_TILE_ROWS; r += CX_TILE_ROWS, asked += each) {
    ask_for(upcoming, asked, asked + each);
    multiply(tile, x + r * x_stride, x_stride, k, CX_TILE_ROWS, is_first, sums + r * sums_stride, sums_stride);
  }
  if (r < n_rows) ask_for(upcoming, asked, asked + each);
  x += r * x_stride;
  sums += r * sums_stride;
  switch (n_rows - r) {
#if CX_TILE_ROWS > 3
    case 3: multiply(tile, x, x_stride, k, 3, is_first, sums, sums_stride); break;
    case 2: multiply(tile, x, x_stride, k, 2, is_first, sums, sums_stride); break;
#endif
    case 1: multiply(tile, x, x_stride, k, 1, is_first, sums, sums_stride); break;
    default: break;
  }
}

/* --- what becomes of the sums ---------------------------------------------------------------------------------------
 */

CX_INLINE vf silu(vf v) { return vf_div(v, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), v)))); }

/* Sums of n <= CX_LANES accumulators; the lanes past n are of no use. */
CX_INLINE vf sums_of(const vf *accumulators, size_t n) {
  vf all[CX_LANES];
  for (size_t i = 0; i < CX_LANES; i++) all[i] = i < n ? accumulators[i] : vf_zero();
  return vf_sums(all);
}

/* y[row, first .. first + n) of a product from n accumulators. */
static void finish_linear(const struct product *product, size_t row, size_t first, size_t n, const vf *accumulators) {
  for (size_t i = 0; i < n; i += CX_LANES) {
    const size_t lanes = n - i < CX_LANES ? n - i : CX_LANES, at = first + i;
    vf v = sums_of(accumulators + i, lanes);
    if (product->bias != NULL) v = vf_add(v, vf_load_n(product->bias + at, lanes));
    if (product->residual != NULL)
      v = vf_add(vf_load_n(product->residual + row * product->residual_stride + at, lanes), v);
    vf_store_n(product->y + row * product->y_stride + at, v, lanes);
  }
}

static void finish_gated(const struct product *up, size_t row, size_t first, size_t n, const vf *gates, const vf *ups) {
  for (size_t i = 0; i < n; i += CX_LANES) {
    const size_t lanes = n - i < CX_LANES ? n - i : CX_LANES;
    const vf v = vf_mul(silu(sums_of(gates + i, lanes)), sums_of(ups + i, lanes));
    vf_store_n(up->y + row * up->y_stride + first + i, v, lanes);
  }
}

/* --- items ----------------------------------------------------------------------------------------------------------
 */

/* How a job is cut: items [row block][product][weight block], so that neighbours share activations. Gate and up are cut
 * as one. */
struct cut {
  size_t outputs;   /* of an item: weight rows, or pairs of them */
  size_t row_block; /* activation rows of an item */
  size_t row_blocks, weight_blocks;
};

static struct cut cut_of(const struct job *job) {
  struct cut cut = {.outputs = DOT_ITEM, .row_block = job->n_rows, .row_blocks = job->n_rows != 0};
  if (job->n_rows > DOT_MOST) {
    cut.outputs = job->is_gated ? TILE_ITEM / 2 : TILE_ITEM;
    cut.row_block = divide_up(divide_up(job->n_rows, divide_up(job->n_rows, ROW_BLOCK)), CX_TILE_ROWS) * CX_TILE_ROWS;
    cut.row_blocks = divide_up(job->n_rows, cut.row_block);
  }
  const size_t n_cut = job->is_gated ? 1 : job->n_products;
  for (size_t p = 0; p < n_cut; p++) cut.weight_blocks += divide_up(job->products[p].n, cut.outputs);
  return cut;
}

/* An item's part of a product: weight rows [first, first + n) and activation rows [row, row + n_rows). */
struct piece {
  const struct product *product;
  size_t first, n, row, n_rows;
};

static struct piece piece_of(const struct job *job, const struct cut *cut, size_t item) {
  size_t block = item % cut->weight_blocks;
  const size_t row = item / cut->weight_blocks * cut->row_block, rows_left = job->n_rows - row;
  const struct product *product = job->products;
  for (; block >= divide_up(product->n, cut->outputs); product++) block -= divide_up(product->n, cut->outputs);
  const size_t first = block * cut->outputs, left = product->n - first;
  const struct piece piece = {product, first, left < cut->outputs ? left : cut->outputs, row,
                              rows_left < cut->row_block ? rows_left : cut->row_block};
  return piece;
}

/* sums[n_rows][DOT_ITEM] */
static void dot_product(const struct cx_run *run, const struct job *job, const struct product *product,
                        const struct piece *piece, vf *sums) {
  const struct weights weights = weights_at(run, product->weight, job->k, piece->first);
  const struct inputs inputs = {job->x + piece->row * job->x_stride, job->x_stride, piece->n_rows, sums, DOT_ITEM};
  weight_types[product->weight.type].dot(&weights, piece->n, &inputs);
}

static void run_few_rows(const struct cx_run *run, const struct job *job, const struct piece *piece) {
  vf sums[DOT_MOST][DOT_ITEM], ups[DOT_MOST][DOT_ITEM];
  dot_product(run, job, piece->product, piece, sums[0]);
  if (job->is_gated) dot_product(run, job, &job->products[1], piece, ups[0]);
  for (size_t r = 0; r < piece->n_rows; r++) {
    if (job->is_gated)
      finish_gated(&job->products[1], piece->row + r, piece->first, piece->n, sums[r], ups[r]);
    else
      finish_linear(piece->product, piece->row + r, piece->first, piece->n, sums[r]);
  }
}

/* sums[n_rows][TILE_ITEM] from the given column on (+)= columns [begin, end) of the piece's rows. */
static void tile_product(const struct cx_run *run, const struct job *job, const struct product *product,
                         const struct piece *piece, size_t begin, size_t end, float *tile, vf *sums) {
  const float *x = job->x + piece->row * job->x_stride + begin;
  for (size_t w = 0; w < piece->n; w += CX_TILE_WEIGHTS) {
    const size_t n = piece->n - w < CX_TILE_WEIGHTS ? piece->n - w : CX_TILE_WEIGHTS;
    const struct weights weights = weights_at(run, product->weight, job->k, piece->first + w);
    const size_t skipped = weights.row_bytes * begin / job->k, n_bytes = weights.row_bytes * (end - begin) / job->k;
    const struct upcoming upcoming = {bytes_ahead(weights.first, n * weights.row_bytes + skipped), weights.row_bytes,
                                      CX_TILE_WEIGHTS, divide_up(n_bytes, 64)};
    weight_types[product->weight.type].unpack(&weights, n, begin, end, tile);
    multiply_rows(tile, x, job->x_stride, end - begin, piece->n_rows, begin == 0, sums + w, TILE_ITEM, &upcoming);
  }
}

/* Columns of a tile: k cut into equal parts of at most TILE_K, each but the last a multiple of 256. */
CX_INLINE size_t tile_columns(size_t k) { return divide_up(divide_up(k, divide_up(k, TILE_K)), 256) * 256; }

static void run_many_rows(const struct cx_run *run, const struct job *job, const struct piece *piece, void *scratch) {
  const size_t step = tile_columns(job->k), half = TILE_ITEM / 2;
  float *tile = scratch;
  vf *sums = (vf *)(tile + step * CX_TILE_WEIGHTS);
  for (size_t begin = 0; begin < job->k; begin += step) {
    const size_t end = job->k - begin < step ? job->k : begin + step;
    tile_product(run, job, piece->product, piece, begin, end, tile, sums);
    if (job->is_gated) tile_product(run, job, &job->products[1], piece, begin, end, tile, sums + half);
  }
  for (size_t r = 0; r < piece->n_rows; r++) {
    const vf *own = sums + r * TILE_ITEM;
    if (job->is_gated)
      finish_gated(&job->products[1], piece->row + r, piece->first, piece->n, own, own + half);
    else
      finish_linear(piece->product, piece->row + r, piece->first, piece->n, own);
  }
}

static void run_items(const struct cx_run *run, const struct job *job, uint32_t begin, uint32_t end, void *scratch) {
  const struct cut cut = cut_of(job);
  for (uint32_t item = begin; item < end; item++) {
    const struct piece piece = piece_of(job, &cut, item);
    if (job->n_rows <= DOT_MOST)
      run_few_rows(run, job, &piece);
    else
      run_many_rows(run, job, &piece, scratch);
  }
}

static uint32_t count_items(const struct job *job) {
  const struct cut cut = cut_of(job);
  return (uint32_t)(cut.row_blocks * cut.weight_blocks);
}

/* One tile and the accumulators of one item. */
static uint64_t scratch_for(size_t k, uint32_t max_rows) {
  const size_t rows = max_rows < ROW_BLOCK ? divide_up(max_rows, CX_TILE_ROWS) * CX_TILE_ROWS : ROW_BLOCK;
  return max_rows > DOT_MOST ? (tile_columns(k) * CX_TILE_WEIGHTS + rows * TILE_ITEM * CX_LANES) * sizeof(float) : 0;
}

/* --- the ops --------------------------------------------------------------------------------------------------------
 */

static const void *optional_at(const struct cx_run *run, struct cx_ref ref) {
  return ref.arena == CX_ARENA_NONE ? NULL : cx_at(run, ref);
}

static struct job linear_job(const struct cx_op_linear *op, const struct cx_run *run) {
  struct job job = {.x = cx_at(run, op->x),
                    .n_products = op->n_parts,
                    .n_rows = cx_run_rows(&op->head, run),
                    .k = op->k,
                    .x_stride = op->x_stride};
  for (uint32_t i = 0; i < op->n_parts; i++) {
    const struct cx_linear_part *part = &op->parts[i];
    const struct product product = {.weight = part->weight,
                                    .bias = optional_at(run, part->bias),
                                    .residual = optional_at(run, op->residual),
                                    .y = cx_at(run, part->y),
                                    .n = part->n,
                                    .y_stride = part->y_stride,
                                    .residual_stride = op->residual_stride};
    job.products[i] = product;
  }
  return job;
}

static uint32_t linear_items(const void *op, const struct cx_run *run) {
  const struct job job = linear_job(op, run);
  return count_items(&job);
}

static void linear_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct job job = linear_job(op, run);
  run_items(run, &job, begin, end, scratch);
}

static uint64_t linear_scratch_bytes(const void *op, uint32_t max_rows) {
  return scratch_for(((const struct cx_op_linear *)op)->k, max_rows);
}

static struct job gated_linear_job(const struct cx_op_gated_linear *op, const struct cx_run *run) {
  const struct product gate = {.weight = op->gate, .n = op->n};
  const struct product up = {.weight = op->up, .y = cx_at(run, op->y), .n = op->n, .y_stride = op->y_stride};
  const struct job job = {.products = {gate, up},
                          .x = cx_at(run, op->x),
                          .n_products = 2,
                          .n_rows = cx_run_rows(&op->head, run),
                          .k = op->k,
                          .x_stride = op->x_stride,
                          .is_gated = 1};
  return job;
}

static uint32_t gated_linear_items(const void *op, const struct cx_run *run) {
  const struct job job = gated_linear_job(op, run);
  return count_items(&job);
}

static void gated_linear_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct job job = gated_linear_job(op, run);
  run_items(run, &job, begin, end, scratch);
}

static uint64_t gated_linear_scratch_bytes(const void *op, uint32_t max_rows) {
  return scratch_for(((const struct cx_op_gated_linear *)op)->k, max_rows);
}

#endif
