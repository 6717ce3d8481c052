/* RMS norm, alone (CX_OP_RMS_NORM) and as a step of rope_store. Knows no threads: a row's bits depend on that row alone.
 *
 * The sum of squares is f32 in a fixed order: vector i of the row goes to accumulator i % 4, the tail to accumulator 0, then
 * (0 + 1) + (2 + 3) and vf_sum. All terms are positive, so nothing cancels: for 4096 elements in 8 lanes an accumulator adds 128
 * terms and the relative error stays under 2^-17 even if every rounding went one way (about 2^-22 as a rule), and the root
 * halves it. That is what f32 activations carry already, so sums in f64 would cost conversions and buy nothing.
 */
#ifndef CX_NORM_H
#define CX_NORM_H

/* 1 / sqrt(mean(x[n]^2) + eps) */
CX_INLINE float inverse_rms(const float *restrict x, uint32_t n, float eps) {
  vf sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  uint32_t i = 0;
  for (; n - i >= 4 * CX_LANES; i += 4 * CX_LANES) {
    CX_UNROLL for (uint32_t j = 0; j < 4; j++) {
      const vf v = vf_load(x + i + j * CX_LANES);
      sums[j] = vf_fma(v, v, sums[j]);
    }
  }
  for (; n - i >= CX_LANES; i += CX_LANES) {
    const vf v = vf_load(x + i);
    sums[0] = vf_fma(v, v, sums[0]);
  }
  if (i < n) {
    const vf v = vf_load_n(x + i, n - i);
    sums[0] = vf_fma(v, v, sums[0]);
  }
  const float sum = vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
  return (float)(1.0 / sqrt((double)sum / n + (double)eps));
}

/* y[n] = x[n] * factor * weight[n]; y may be x. */
CX_INLINE void scale_by_weight_inplace(const float *x, float factor, const float *restrict weight, uint32_t n, float *y) {
  const vf factors = vf_set1(factor);
  uint32_t i = 0;
  for (; n - i >= CX_LANES; i += CX_LANES)
    vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), factors), vf_load(weight + i)));
  if (i < n) vf_store_n(y + i, vf_mul(vf_mul(vf_load_n(x + i, n - i), factors), vf_load_n(weight + i, n - i)), n - i);
}

static uint32_t rms_norm_items(const void *op, const struct cx_run *run) {
  const struct cx_op_rms_norm *o = op;
  return items_of_rows(cx_run_rows(&o->head, run), rows_per_item(o->dim));
}

static void rms_norm_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_rms_norm *o = op;
  const uint32_t per_item = rows_per_item(o->dim), last = rows_end(cx_run_rows(&o->head, run), per_item, end);
  const float *x = cx_at(run, o->x), *weight = cx_at(run, o->weight);
  float *y = cx_at(run, o->y);
  (void)scratch;
  for (uint32_t row = begin * per_item; row < last; row++) {
    const float *from = x + (size_t)row * o->x_stride;
    scale_by_weight_inplace(from, inverse_rms(from, o->dim, o->eps), weight, o->dim, y + (size_t)row * o->y_stride);
  }
}

#endif
