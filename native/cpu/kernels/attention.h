/* CX_OP_ATTENTION: causal softmax attention of every query head over its slot's keys and values, up to its own position.
 *
 * What keeps a row's bits its own: every query merges blocks of CX_ATTENTION_BLOCK absolute positions in order (an online
 * softmax), and inside a block each number is made in an order that no other query can change:
 *   score     vector i of the head goes to one accumulator in order, then the tail, then vf_sum, then times scale
 *   maximum   exact, so any order
 *   weights   vf_exp(score - maximum), summed in vectors in order, then vf_sum
 *   output    scaled by exp(old maximum - new maximum), then weight * value added position by position
 * Queries that share keys (heads of a group, rows of a slot) share the loads and nothing else. A query reads positions 0 to its own;
 * later ones may hold anything.
 *
 * An item is ATTENTION_ROWS rows of one query head, heads innermost: a range of items shares the keys of a group, while one decoded
 * row still spreads over as many threads as it has heads. y is the accumulator; it overlaps nothing else.
 */
#ifndef CX_ATTENTION_H
#define CX_ATTENTION_H

#define ATTENTION_ROWS 8
#define ATTENTION_QUERIES 64                             /* most queries whose state is kept at once */
#define ATTENTION_SCORES (CX_ATTENTION_BLOCK + CX_LANES) /* a block's, with room for a last vector past the end */

struct attention_query {
  const float *q;       /* [head_dim] */
  float *y;             /* [head_dim] */
  float maximum, sum;   /* over the blocks so far */
  uint32_t n_positions; /* its own position + 1 */
};

/* One kv head's lines of one slot, from some position on. */
struct attention_lines {
  const uint8_t *keys, *values;
  size_t key_bytes, value_bytes; /* of one position */
  int key_is_bf16, value_is_bf16;
  uint32_t head_dim;
  float scale;
};

CX_INLINE vf kv_load(const uint8_t *line, uint32_t i, int is_bf16) {
  return is_bf16 ? vf_load_bf16(line + 2 * (size_t)i) : vf_load((const float *)line + i);
}

CX_INLINE vf kv_load_n(const uint8_t *line, uint32_t i, uint32_t n, int is_bf16) {
  return is_bf16 ? vf_load_bf16_n(line + 2 * (size_t)i, n) : vf_load_n((const float *)line + i, n);
}

/* scores[j][p] = q[j] . key[p] * scale for n_queries (1 or 2) times n_keys (1 or 4), p from the position at; sizes and type are
 * constants where this is called. */
CX_INLINE void score_tile(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, uint32_t at,
                          uint32_t n_keys, int is_bf16, float scores[][ATTENTION_SCORES]) {
  const uint32_t head_dim = lines->head_dim;
  const uint8_t *keys = lines->keys + at * lines->key_bytes;
  vf sums[2][4] = {{vf_zero(), vf_zero(), vf_zero(), vf_zero()}, {vf_zero(), vf_zero(), vf_zero(), vf_zero()}}, k[4];
  uint32_t i = 0;
  for (; head_dim - i >= CX_LANES; i += CX_LANES) {
    CX_UNROLL for (uint32_t p = 0; p < n_keys; p++) k[p] = kv_load(keys + p * lines->key_bytes, i, is_bf16);
    CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
      const vf q = vf_load(queries[j].q + i);
      CX_UNROLL for (uint32_t p = 0; p < n_keys; p++) sums[j][p] = vf_fma(q, k[p], sums[j][p]);
    }
  }
  if (i < head_dim) {
    CX_UNROLL for (uint32_t p = 0; p < n_keys; p++) k[p] = kv_load_n(keys + p * lines->key_bytes, i, head_dim - i, is_bf16);
    CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
      const vf q = vf_load_n(queries[j].q + i, head_dim - i);
      CX_UNROLL for (uint32_t p = 0; p < n_keys; p++) sums[j][p] = vf_fma(q, k[p], sums[j][p]);
    }
  }
  CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
    CX_UNROLL for (uint32_t p = 0; p < n_keys; p++) scores[j][at + p] = vf_sum(sums[j][p]) * lines->scale;
  }
}

CX_INLINE void score_run(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, uint32_t from,
                         uint32_t to, int is_bf16, float scores[][ATTENTION_SCORES]) {
  uint32_t at = from;
  for (; to - at >= 4; at += 4) score_tile(queries, n_queries, lines, at, 4, is_bf16, scores);
  for (; at < to; at++) score_tile(queries, n_queries, lines, at, 1, is_bf16, scores);
}

/* The scores of one or two queries at positions [from, to) of a block. */
static void score_positions(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines,
                            uint32_t from, uint32_t to, float scores[][ATTENTION_SCORES]) {
  if (n_queries == 2)
    lines->key_is_bf16 ? score_run(queries, 2, lines, from, to, 1, scores) : score_run(queries, 2, lines, from, to, 0, scores);
  else
    lines->key_is_bf16 ? score_run(queries, 1, lines, from, to, 1, scores) : score_run(queries, 1, lines, from, to, 0, scores);
}

/* scores[n] become weights; the query's maximum and sum take the block in. Returns what earlier blocks' output is scaled by. */
static float weigh_scores(struct attention_query *query, float scores[ATTENTION_SCORES], uint32_t n) {
  vf largest = vf_set1(query->maximum), sums = vf_zero();
  for (uint32_t i = 0; i < CX_LANES; i++) scores[n + i] = -INFINITY; /* their weight is 0 */
  for (uint32_t i = 0; i < n; i += CX_LANES) largest = vf_max(largest, vf_load(scores + i));
  const float maximum = vf_hmax(largest);
  for (uint32_t i = 0; i < n; i += CX_LANES) {
    const vf weight = vf_exp(vf_sub(vf_load(scores + i), vf_set1(maximum)));
    sums = vf_add(sums, weight);
    vf_store(scores + i, weight);
  }
  const float factor = vf_hmax(vf_exp(vf_set1(query->maximum - maximum)));
  query->sum = query->sum * factor + vf_sum(sums);
  query->maximum = maximum;
  return factor;
}

/* y[j][i ..] = y[j][i ..] * factors[j] + weight * value over positions [from, to), n_vectors vectors of it in registers. */
CX_INLINE void value_tile(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, uint32_t from,
                          uint32_t to, uint32_t i, uint32_t n_vectors, int is_bf16, float weights[][ATTENTION_SCORES],
                          const float *factors) {
  vf sums[2][8], v[8];
  CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
    const vf factor = vf_set1(factors[j]);
    CX_UNROLL for (uint32_t c = 0; c < n_vectors; c++) sums[j][c] = vf_mul(vf_load(queries[j].y + i + c * CX_LANES), factor);
  }
  for (uint32_t p = from; p < to; p++) {
    const uint8_t *line = lines->values + p * lines->value_bytes;
    CX_UNROLL for (uint32_t c = 0; c < n_vectors; c++) v[c] = kv_load(line, i + c * CX_LANES, is_bf16);
    CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
      const vf weight = vf_set1(weights[j][p]);
      CX_UNROLL for (uint32_t c = 0; c < n_vectors; c++) sums[j][c] = vf_fma(weight, v[c], sums[j][c]);
    }
  }
  CX_UNROLL for (uint32_t j = 0; j < n_queries; j++) {
    CX_UNROLL for (uint32_t c = 0; c < n_vectors; c++) vf_store(queries[j].y + i + c * CX_LANES, sums[j][c]);
  }
}

/* The same for the last head_dim % CX_LANES elements, of one query. */
CX_INLINE void value_tail(const struct attention_query *query, const struct attention_lines *lines, uint32_t from, uint32_t to,
                          uint32_t i, int is_bf16, const float *weights, float factor) {
  const uint32_t n = lines->head_dim - i;
  vf sum = vf_mul(vf_load_n(query->y + i, n), vf_set1(factor));
  for (uint32_t p = from; p < to; p++)
    sum = vf_fma(vf_set1(weights[p]), kv_load_n(lines->values + p * lines->value_bytes, i, n, is_bf16), sum);
  vf_store_n(query->y + i, sum, n);
}

CX_INLINE void value_run(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, uint32_t from,
                         uint32_t to, int is_bf16, float weights[][ATTENTION_SCORES], const float *factors) {
  const uint32_t head_dim = lines->head_dim;
  uint32_t i = 0;
  if (n_queries == 1) /* one query has registers for eight */
    for (; head_dim - i >= 8 * CX_LANES; i += 8 * CX_LANES)
      value_tile(queries, 1, lines, from, to, i, 8, is_bf16, weights, factors);
  for (; head_dim - i >= 4 * CX_LANES; i += 4 * CX_LANES)
    value_tile(queries, n_queries, lines, from, to, i, 4, is_bf16, weights, factors);
  for (; head_dim - i >= CX_LANES; i += CX_LANES) value_tile(queries, n_queries, lines, from, to, i, 1, is_bf16, weights, factors);
  if (i < head_dim)
    for (uint32_t j = 0; j < n_queries; j++) value_tail(&queries[j], lines, from, to, i, is_bf16, weights[j], factors[j]);
}

/* The weighted values of positions [from, to) of a block, added to the outputs of one or two queries scaled by factors. */
static void add_values(const struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, uint32_t from,
                       uint32_t to, float weights[][ATTENTION_SCORES], const float *factors) {
  if (n_queries == 2)
    lines->value_is_bf16 ? value_run(queries, 2, lines, from, to, 1, weights, factors)
                         : value_run(queries, 2, lines, from, to, 0, weights, factors);
  else
    lines->value_is_bf16 ? value_run(queries, 1, lines, from, to, 1, weights, factors)
                         : value_run(queries, 1, lines, from, to, 0, weights, factors);
}

/* One block for one or two queries, of which query j attends to the first n[j] positions, 1 <= n[0] <= n[1]: together as far as both
 * go, then the second alone. */
static void merge_block(struct attention_query *queries, uint32_t n_queries, const struct attention_lines *lines, const uint32_t *n) {
  static const float one = 1.0f;
  float scores[2][ATTENTION_SCORES], factors[2];
  const int has_rest = n_queries == 2 && n[1] > n[0];
  score_positions(queries, n_queries, lines, 0, n[0], scores);
  if (has_rest) score_positions(queries + 1, 1, lines, n[0], n[1], scores + 1);
  for (uint32_t j = 0; j < n_queries; j++) factors[j] = weigh_scores(&queries[j], scores[j], n[j]);
  add_values(queries, n_queries, lines, 0, n[0], scores, factors);
  if (has_rest) add_values(queries + 1, 1, lines, n[0], n[1], scores + 1, &one);
}

/* Queries that share a slot and a kv head, in ascending position, over all their positions. */
static void attend(struct attention_query *queries, uint32_t n_queries, struct attention_lines lines, uint32_t n_positions) {
  for (uint32_t base = 0; base < n_positions; base += CX_ATTENTION_BLOCK) {
    uint32_t n[2], n_pair = 0, pair = 0;
    for (uint32_t j = 0; j <= n_queries; j++) {
      const int attends = j < n_queries && queries[j].n_positions > base;
      if (attends) {
        const uint32_t left = queries[j].n_positions - base;
        if (n_pair == 0) pair = j;
        n[n_pair++] = left < CX_ATTENTION_BLOCK ? left : CX_ATTENTION_BLOCK;
      }
      if (n_pair == 2 || (n_pair == 1 && !attends)) {
        merge_block(queries + pair, n_pair, &lines, n);
        n_pair = 0;
      }
    }
    lines.keys += CX_ATTENTION_BLOCK * lines.key_bytes;
    lines.values += CX_ATTENTION_BLOCK * lines.value_bytes;
  }
  for (uint32_t j = 0; j < n_queries; j++) {
    const float factor = 1.0f / queries[j].sum;
    for (uint32_t i = 0; i < lines.head_dim; i++) queries[j].y[i] *= factor;
  }
}

/* Rows [row, last), all of one slot, of heads [head, head + n_heads), all of one kv head: at most ATTENTION_QUERIES together. */
static void attend_rows(const struct cx_op_attention *o, const struct cx_run *run, uint32_t row, uint32_t last, uint32_t head,
                        uint32_t n_heads) {
  const size_t head_dim = o->head_dim;
  const int key_is_bf16 = o->k_cache.type == cx_type_bf16, value_is_bf16 = o->v_cache.type == cx_type_bf16;
  const size_t first = ((size_t)run->slots[row] * o->n_kv_heads + head / (o->n_heads / o->n_kv_heads)) * o->context;
  struct attention_lines lines = {
      .key_bytes = head_dim * (key_is_bf16 ? 2 : 4), .value_bytes = head_dim * (value_is_bf16 ? 2 : 4),
      .key_is_bf16 = key_is_bf16, .value_is_bf16 = value_is_bf16,
      .head_dim = o->head_dim, .scale = o->scale,
  };
  lines.keys = (const uint8_t *)cx_at(run, o->k_cache) + first * lines.key_bytes;
  lines.values = (const uint8_t *)cx_at(run, o->v_cache) + first * lines.value_bytes;
  struct attention_query queries[ATTENTION_QUERIES];
  uint32_t n_queries = 0;
  for (uint32_t r = row; r < last; r++) {
    for (uint32_t h = head; h < head + n_heads; h++) {
      const float *q = (const float *)cx_at(run, o->q) + (size_t)r * o->q_stride + h * head_dim;
      float *y = (float *)cx_at(run, o->y) + (size_t)r * o->y_stride + h * head_dim;
      memset(y, 0, head_dim * sizeof *y);
      queries[n_queries++] =
          (struct attention_query){.q = q, .y = y, .maximum = -INFINITY, .sum = 0, .n_positions = run->positions[r] + 1};
    }
  }
  attend(queries, n_queries, lines, run->positions[last - 1] + 1);
}

static uint32_t attention_items(const void *op, const struct cx_run *run) {
  const struct cx_op_attention *o = op;
  return items_of_rows(run->n_rows, ATTENTION_ROWS) * o->n_heads;
}

static void attention_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_attention *o = op;
  const uint32_t group = o->n_heads / o->n_kv_heads;
  (void)scratch;
  while (begin < end) {
    const uint32_t head = begin % o->n_heads, last = rows_end(run->n_rows, ATTENTION_ROWS, begin / o->n_heads + 1);
    uint32_t n_heads = group - head % group;
    if (n_heads > end - begin) n_heads = end - begin;
    if (n_heads > ATTENTION_QUERIES / ATTENTION_ROWS) n_heads = ATTENTION_QUERIES / ATTENTION_ROWS;
    for (uint32_t row = begin / o->n_heads * ATTENTION_ROWS; row < last;) {
      uint32_t next = row + 1;
      while (next < last && run->slots[next] == run->slots[row]) next++;
      attend_rows(o, run, row, next, head, n_heads);
      row = next;
    }
    begin += n_heads;
  }
}

#endif
