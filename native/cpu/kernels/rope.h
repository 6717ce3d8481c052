/* Rotary positions: the step's table of angles (CX_OP_ROPE_ANGLES), and CX_OP_ROPE_STORE, which rotates queries and keys and puts
 * keys and values into the cache. Needs norm.h. A row's bits depend on that row alone.
 *
 * A head's first rope_dim elements are rotated in pairs, the rest pass through. q is changed in place, k and v are only read; no two of
 * the op's tensors overlap.
 */
#ifndef CX_ROPE_H
#define CX_ROPE_H

static uint32_t rope_angles_items(const void *op, const struct cx_run *run) {
  const struct cx_op_rope_angles *o = op;
  return items_of_rows(run->n_rows, rows_per_item(64 * o->half)); /* a cosine and a sine cost as much as 64 floats elsewhere */
}

static void rope_angles_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_rope_angles *o = op;
  const uint32_t per_item = rows_per_item(64 * o->half), last = rows_end(run->n_rows, per_item, end);
  const float *inv_freq = cx_at(run, o->inv_freq);
  float *y = cx_at(run, o->y);
  (void)scratch;
  for (uint32_t row = begin * per_item; row < last; row++) {
    float *cosines = y + (size_t)row * o->y_stride, *sines = cosines + o->half;
    for (uint32_t i = 0; i < o->half; i++) {
      const float angle = (float)run->positions[row] * inv_freq[i];
      cosines[i] = (float)cos((double)angle) * o->scale;
      sines[i] = (float)sin((double)angle) * o->scale;
    }
  }
}

/* (a, b)[n] = (a cos - b sin, b cos + a sin) for the two halves of a head */
CX_INLINE void rotate_halves_inplace(float *a, float *b, const float *restrict cosines, const float *restrict sines, uint32_t n) {
  uint32_t i = 0;
  for (; n - i >= CX_LANES; i += CX_LANES) {
    const vf x = vf_load(a + i), y = vf_load(b + i), c = vf_load(cosines + i), s = vf_load(sines + i);
    vf_store(a + i, vf_sub(vf_mul(x, c), vf_mul(y, s)));
    vf_store(b + i, vf_add(vf_mul(y, c), vf_mul(x, s)));
  }
  if (i == n) return;
  const uint32_t left = n - i;
  const vf x = vf_load_n(a + i, left), y = vf_load_n(b + i, left);
  const vf c = vf_load_n(cosines + i, left), s = vf_load_n(sines + i, left);
  vf_store_n(a + i, vf_sub(vf_mul(x, c), vf_mul(y, s)), left);
  vf_store_n(b + i, vf_add(vf_mul(y, c), vf_mul(x, s)), left);
}

/* The same for pairs that lie side by side; half of them, two floats each. */
CX_INLINE void rotate_pairs_inplace(float *pairs, const float *restrict cosines, const float *restrict sines, uint32_t half) {
  for (uint32_t i = 0; i < half; i++) {
    const float x = pairs[2 * i], y = pairs[2 * i + 1];
    pairs[2 * i] = x * cosines[i] - y * sines[i];
    pairs[2 * i + 1] = y * cosines[i] + x * sines[i];
  }
}

/* One head of head_dim floats: norm where there is a weight, then the rotation by angles[2, rope_dim / 2]. */
CX_INLINE void norm_and_rotate_inplace(const struct cx_op_rope_store *o, float *head, const float *norm, const float *angles) {
  const uint32_t half = o->rope_dim / 2;
  if (norm) scale_by_weight_inplace(head, inverse_rms(head, o->head_dim, o->eps), norm, o->head_dim, head);
  if (o->style == CX_ROPE_ADJACENT)
    rotate_pairs_inplace(head, angles, angles + half, half);
  else
    rotate_halves_inplace(head, head + half, angles, angles + half, half);
}

/* One head's n floats to a cache of type f32 or bf16, at an element offset. */
CX_INLINE void store_head(const float *restrict x, uint32_t n, uint32_t type, void *cache, size_t offset) {
  if (type == cx_type_f32) {
    memcpy((float *)cache + offset, x, n * sizeof *x);
    return;
  }
  uint16_t *to = (uint16_t *)cache + offset;
  uint32_t i = 0;
  for (; n - i >= CX_LANES; i += CX_LANES) vf_store_bf16(to + i, vf_load(x + i));
  if (i < n) vf_store_bf16_n(to + i, vf_load_n(x + i, n - i), n - i);
}

CX_INLINE uint32_t rope_store_rows(const struct cx_op_rope_store *o) {
  return rows_per_item((o->n_heads + 2 * o->n_kv_heads) * o->head_dim);
}

static uint32_t rope_store_items(const void *op, const struct cx_run *run) {
  return items_of_rows(run->n_rows, rope_store_rows(op));
}

/* One head of keys, made ready for the cache. */
static uint64_t rope_store_scratch_bytes(const void *op, uint32_t max_rows) {
  const struct cx_op_rope_store *o = op;
  (void)max_rows;
  return o->head_dim * sizeof(float);
}

static void rope_store_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_rope_store *o = op;
  const uint32_t per_item = rope_store_rows(o), last = rows_end(run->n_rows, per_item, end);
  const size_t head_dim = o->head_dim;
  const float *q_norm = o->q_norm.arena ? cx_at(run, o->q_norm) : NULL, *k_norm = o->k_norm.arena ? cx_at(run, o->k_norm) : NULL;
  void *k_cache = cx_at(run, o->k_cache), *v_cache = cx_at(run, o->v_cache);
  float *key = scratch;
  for (uint32_t row = begin * per_item; row < last; row++) {
    float *q = (float *)cx_at(run, o->q) + (size_t)row * o->q_stride;
    const float *k = (const float *)cx_at(run, o->k) + (size_t)row * o->k_stride;
    const float *v = (const float *)cx_at(run, o->v) + (size_t)row * o->v_stride;
    const float *angles = (const float *)cx_at(run, o->angles) + (size_t)row * o->angles_stride;
    for (uint32_t h = 0; h < o->n_heads; h++) norm_and_rotate_inplace(o, q + h * head_dim, q_norm, angles);
    for (uint32_t h = 0; h < o->n_kv_heads; h++) {
      const size_t line = ((size_t)run->slots[row] * o->n_kv_heads + h) * o->context + run->positions[row];
      memcpy(key, k + h * head_dim, head_dim * sizeof *key);
      norm_and_rotate_inplace(o, key, k_norm, angles);
      store_head(key, o->head_dim, o->k_cache.type, k_cache, line * head_dim);
      store_head(v + h * head_dim, o->head_dim, o->v_cache.type, v_cache, line * head_dim);
    }
  }
}

#endif
