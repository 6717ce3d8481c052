/* Rows of weights of any type: multiplied in registers as they are decoded (dot), or decoded into a tile (unpack).
 *
 * Written once over a type's load32 and expanded over the list of types. What both must keep, because a linear layer's
 * bits rest on it: an output has one accumulator vector; vector i of the row, decoded exactly as the plain decoder
 * does, times vector i of the input is added to it for i = 0, 1, 2 ... in order. How many rows or inputs run side by
 * side changes no bit.
 *
 * Weights may start at any byte and nothing past the last row is read. Rows of a block type hold a multiple of 32
 * elements.
 */
#ifndef CX_WEIGHTS_H
#define CX_WEIGHTS_H

typedef void decode_function(const void *src, uint64_t n, float *dst);

/* What is constant for a type. A unit is what inner loops are unrolled over: a block of 256, so that its factors are
 * taken once, or two groups of 32. */
struct unit {
  void (*make_factors)(const uint8_t *block, float factors[CX_FACTORS]); /* of a block of 256 */
  /* 32 elements; group 0 is the row's first, and `factors` are those of its block */
  void (*load32)(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]);
  decode_function *decode;
  size_t n_groups, n_bytes;
  int is_flat; /* a block is one element, and k may be any number */
};

/* Rows of weights in memory: where the first is, and how long each is. */
struct weights {
  const uint8_t *first;
  size_t row_bytes, k;
};

/* What dot holds at once: rows side by side, enough that their chains of additions hide each other's latency, times
 * inputs that meet a decoded vector together. All accumulators must find registers, and the code is written out for a
 * whole unit of each row: measured per row of instructions, with the size of the code in view. */
#define DOT_ROWS 4 /* at most */
#if CX_LANES == 16
#define DOT_INPUTS 4
#define ROWS_AT_ONCE(unit, n_inputs) ((unit).n_groups == 2 || (n_inputs) == 1 ? 4u : 2u)
#elif CX_LANES == 8
#define DOT_INPUTS 4
#define ROWS_AT_ONCE(unit, n_inputs) ((n_inputs) == 1 ? 4u : 2u)
#else
#define DOT_INPUTS 2
#define ROWS_AT_ONCE(unit, n_inputs) ((unit).n_groups == 2 && (n_inputs) == 1 ? 4u : 2u)
#endif

/* How far ahead dot asks for its bytes, in each of four rows. From memory this decides its speed: every row is a stream
 * of its own, and too short a one for the processor to follow by itself. Of 1 to 16 KiB, 4 gave the most on Zen 5 and 2 to
 * 4 on Zen 4, and there only into the second-level cache: the first has too few places for lines under way. */
#define PREFETCH_BYTES ((size_t)4096)

CX_INLINE const uint8_t *bytes_ahead(const uint8_t *p, size_t n) { return (const uint8_t *)((uintptr_t)p + n); }

/* Rows of activations, and for each a row of sums, one vector a weight row. */
struct inputs {
  const float *x;
  size_t x_stride, n;
  vf *sums;
  size_t sums_stride;
};

/* total[n][m] += 32 elements of n rows times m inputs, both constants; at[r] is row r's unit, g a group in it, x[m] the
 * input there. */
CX_INLINE void dot_group(struct unit unit, size_t n, size_t m, const uint8_t *const at[DOT_ROWS], size_t g,
                         float factors[DOT_ROWS][CX_FACTORS], const float *const x[DOT_INPUTS], size_t first,
                         vf total[DOT_ROWS][DOT_INPUTS]) {
  CX_UNROLL for (size_t r = 0; r < n; r++) {
    vf v[CX_FLOATS_32];
    unit.load32(at[r], g, factors[r], v);
    CX_UNROLL for (size_t i = 0; i < CX_FLOATS_32; i++)
      CX_UNROLL for (size_t j = 0; j < m; j++)
        total[r][j] = vf_fma(v[i], vf_load(x[j] + first + CX_LANES * i), total[r][j]);
  }
}

/* What is left of a row past its last whole 32 elements: only in types whose block is one element. */
static CX_NOINLINE vf dot_rest(decode_function *decode, const uint8_t *rest, size_t n, const float *x, vf sum) {
  float values[32];
  decode(rest, n, values);
  for (size_t i = 0; i < n; i += CX_LANES) {
    const size_t lanes = n - i < CX_LANES ? n - i : CX_LANES;
    sum = vf_fma(vf_load_n(values + i, lanes), vf_load_n(x + i, lanes), sum);
  }
  return sum;
}

/* n rows from `row` on times m inputs from `input` on, both constants. Where fewer are left the last stands in for
 * those that are missing, whose sums have room but no use. */
CX_INLINE void dot_rows(struct unit unit, size_t n, size_t m, const struct weights *weights, size_t row, size_t n_rows,
                        const struct inputs *inputs, size_t input) {
  const size_t k = weights->k, row_bytes = weights->row_bytes, n_units = k / (32 * unit.n_groups);
  const uint8_t *at[DOT_ROWS];
  const float *x[DOT_INPUTS];
  vf total[DOT_ROWS][DOT_INPUTS];
  CX_ALIGNED(64) float factors[DOT_ROWS][CX_FACTORS];
  CX_UNROLL for (size_t r = 0; r < n; r++) at[r] = weights->first + (row + r < n_rows ? row + r : n_rows - 1) * row_bytes;
  CX_UNROLL for (size_t j = 0; j < m; j++)
    x[j] = inputs->x + (input + j < inputs->n ? input + j : inputs->n - 1) * inputs->x_stride;
  CX_UNROLL for (size_t r = 0; r < n; r++)
    CX_UNROLL for (size_t j = 0; j < m; j++) total[r][j] = vf_zero();
  /* Short rows ask for the same place of rows that come later, as far ahead in all. Long ones ask further on in the
   * row, and from `turn` on, near the row's end, at the start of the rows that come next. */
  const int is_long = row_bytes > PREFETCH_BYTES;
  const size_t later = (DOT_ROWS * PREFETCH_BYTES + n * row_bytes - 1) / (n * row_bytes) * (n * row_bytes);
  size_t ahead = is_long ? PREFETCH_BYTES : later;
  const size_t turn = is_long ? (row_bytes - PREFETCH_BYTES) / unit.n_bytes : n_units;
  for (size_t u = 0; u < n_units; u++) {
    if (u == turn) ahead += (n - 1) * row_bytes;
    CX_UNROLL for (size_t r = 0; r < n; r++)
      CX_UNROLL for (size_t line = 0; line < unit.n_bytes; line += 64) cx_prefetch_later(bytes_ahead(at[r], ahead + line));
    CX_UNROLL for (size_t r = 0; r < n; r++) unit.make_factors(at[r], factors[r]);
    if (unit.n_groups == 8) CX_IN_MEMORY(factors);
    CX_UNROLL for (size_t g = 0; g < unit.n_groups; g++)
      dot_group(unit, n, m, at, g, factors, x, 32 * (u * unit.n_groups + g), total);
    CX_UNROLL for (size_t r = 0; r < n; r++) at[r] += unit.n_bytes;
  }
  if (unit.n_groups == 2 && k / 32 % 2 == 1) dot_group(unit, n, m, at, 0, factors, x, k / 32 * 32 - 32, total);
  if (unit.is_flat && k % 32 != 0) {
    CX_UNROLL for (size_t r = 0; r < n; r++)
      CX_UNROLL for (size_t j = 0; j < m; j++)
        total[r][j] =
            dot_rest(unit.decode, at[r] + k / 32 % 2 * (unit.n_bytes / 2), k % 32, x[j] + k / 32 * 32, total[r][j]);
  }
  CX_UNROLL for (size_t r = 0; r < n; r++)
    CX_UNROLL for (size_t j = 0; j < m; j++) inputs->sums[(input + j) * inputs->sums_stride + row + r] = total[r][j];
}

/* The same for n rows, whatever their number. */
CX_INLINE void dot_inputs(struct unit unit, size_t m, const struct weights *weights, size_t n,
                          const struct inputs *inputs, size_t input) {
  for (size_t row = 0; row < n; row += ROWS_AT_ONCE(unit, m))
    dot_rows(unit, ROWS_AT_ONCE(unit, m), m, weights, row, n, inputs, input);
}

/* sums[inputs][n] = x[inputs, k] . weights[n, k]^T. The sums have room for n and the inputs rounded up to DOT_ROWS and
 * DOT_INPUTS. */
CX_INLINE void dot(struct unit unit, const struct weights *weights, size_t n, const struct inputs *inputs) {
  for (size_t input = 0; input < inputs->n; input += DOT_INPUTS) {
    if (inputs->n - input == 1)
      dot_inputs(unit, 1, weights, n, inputs, input);
    else if (DOT_INPUTS > 2 && inputs->n - input == 2)
      dot_inputs(unit, 2, weights, n, inputs, input);
    else
      dot_inputs(unit, DOT_INPUTS, weights, n, inputs, input);
  }
}

/* Decodes a unit into vectors that stand `step` floats apart. From a copy, because the stores could else be stores into
 * the unit itself, and a block's factors would be taken anew for each group. */
CX_INLINE void unpack_unit(struct unit unit, const uint8_t *at, size_t step, float *to) {
  uint8_t copy[512];
  CX_ALIGNED(64) float factors[CX_FACTORS];
  memcpy(copy, at, unit.n_bytes);
  unit.make_factors(at, factors);
  CX_UNROLL for (size_t g = 0; g < unit.n_groups; g++) {
    vf v[CX_FLOATS_32];
    unit.load32(unit.n_groups == 8 ? copy : at, g, factors, v);
    CX_UNROLL for (size_t i = 0; i < CX_FLOATS_32; i++) vf_store(to + (g * CX_FLOATS_32 + i) * step, v[i]);
  }
}

/* Decodes elements [begin, end) of n rows, n <= CX_TILE_WEIGHTS, into tile[vectors][CX_TILE_WEIGHTS][CX_LANES]; begin
 * is a multiple of 256. Rows that are missing, and what is missing to a last whole vector, are zeros. */
CX_INLINE void unpack(struct unit unit, const struct weights *weights, size_t n, size_t begin, size_t end,
                      float *tile) {
  const size_t step = CX_TILE_WEIGHTS * CX_LANES, row_bytes = weights->row_bytes;
  const size_t n_units = (end - begin) / (32 * unit.n_groups), done = n_units * unit.n_groups;
  const size_t n_groups = (end - begin) / 32, rest = (end - begin) % 32;
  const uint8_t *first = weights->first + begin / (32 * unit.n_groups) * unit.n_bytes;
  for (size_t u = 0; u < n_units; u++) {
    for (size_t r = 0; r < n; r++) {
      const uint8_t *at = first + r * row_bytes + u * unit.n_bytes;
      CX_UNROLL for (size_t line = 0; line < unit.n_bytes; line += 64) cx_prefetch(bytes_ahead(at, n * row_bytes + line));
      unpack_unit(unit, at, step, tile + u * unit.n_groups * CX_FLOATS_32 * step + r * CX_LANES);
    }
  }
  for (size_t r = 0; r < n; r++) {
    const uint8_t *at = first + r * row_bytes + n_units * unit.n_bytes;
    float *to = tile + done * CX_FLOATS_32 * step + r * CX_LANES;
    for (size_t g = done; g < n_groups; g++) {
      vf v[CX_FLOATS_32];
      unit.load32(at, g - done, NULL, v); /* a type of small blocks */
      CX_UNROLL for (size_t i = 0; i < CX_FLOATS_32; i++) vf_store(to + ((g - done) * CX_FLOATS_32 + i) * step, v[i]);
    }
    if (rest == 0) continue;
    float values[32];
    unit.decode(first + r * row_bytes + n_groups * (unit.n_bytes / unit.n_groups), rest, values);
    to = tile + n_groups * CX_FLOATS_32 * step + r * CX_LANES;
    for (size_t i = 0; i < rest; i += CX_LANES)
      vf_store(to + i / CX_LANES * step, vf_load_n(values + i, rest - i < CX_LANES ? rest - i : CX_LANES));
  }
  for (size_t r = n; r < CX_TILE_WEIGHTS; r++)
    for (size_t i = begin; i < end; i += CX_LANES)
      vf_store(tile + (i - begin) / CX_LANES * step + r * CX_LANES, vf_zero());
}

/* n elements, whole blocks, to f32. */
CX_INLINE void decode_row(struct unit unit, const uint8_t *src, uint64_t n, float *dst) {
  float factors[CX_FACTORS];
  for (uint64_t g = 0; g < n / 32; g++) {
    vf v[CX_FLOATS_32];
    if (g % 8 == 0) unit.make_factors(src + g / unit.n_groups * unit.n_bytes, factors);
    unit.load32(src, g, factors, v);
    CX_UNROLL for (size_t i = 0; i < CX_FLOATS_32; i++) vf_store(dst + 32 * g + CX_LANES * i, v[i]);
  }
  if (n % 32 != 0) unit.decode(src + n / 32 * (unit.n_bytes / unit.n_groups), n % 32, dst + n / 32 * 32);
}

/* --- the functions of each type --------------------------------------------------------------------------------------
 */

/* Small blocks have no factors of their own. */
#define SMALL_LOAD(name, id, elements, bytes)                                                                        \
  CX_INLINE void load_##name(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {         \
    (void)factors;                                                                                                   \
    cx_##name##_load32(row, group, out);                                                                             \
  }                                                                                                                  \
  CX_INLINE void factors_##name(const uint8_t *block, float factors[CX_FACTORS]) { (void)block, (void)factors; }
CX_SMALL_QUANTS(SMALL_LOAD)
#undef SMALL_LOAD

#define LARGE_LOAD(name, id, elements, bytes)                                                                        \
  CX_INLINE void load_##name(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {         \
    cx_##name##_load32(row, group, factors, out);                                                                    \
  }                                                                                                                  \
  CX_INLINE void factors_##name(const uint8_t *block, float factors[CX_FACTORS]) { cx_##name##_factors(block, factors); }
CX_LARGE_QUANTS(LARGE_LOAD)
#undef LARGE_LOAD

#define UNIT(name, elements, bytes)                                                                \
  ((struct unit){factors_##name, load_##name, cx_##name##_decode, (elements) == 256 ? 8 : 2,        \
                 (elements) == 256 ? (bytes) : 64 / (elements) * (bytes), (elements) == 1})

#define FUNCTIONS(name, id, elements, bytes)                                                                  \
  static void dot_##name(const struct weights *weights, size_t n, const struct inputs *inputs) {              \
    dot(UNIT(name, elements, bytes), weights, n, inputs);                                                     \
  }                                                                                                           \
  static void unpack_##name(const struct weights *weights, size_t n, size_t begin, size_t end, float *tile) { \
    unpack(UNIT(name, elements, bytes), weights, n, begin, end, tile);                                        \
  }                                                                                                           \
  static void decode_##name(const void *src, uint64_t n, float *dst) {                                        \
    decode_row(UNIT(name, elements, bytes), src, n, dst);                                                     \
  }
CX_QUANTS(FUNCTIONS)
#undef FUNCTIONS

/* By type number. */
struct weight_type {
  uint32_t block_elements, block_bytes;
  void (*dot)(const struct weights *weights, size_t n, const struct inputs *inputs);
  void (*unpack)(const struct weights *weights, size_t n, size_t begin, size_t end, float *tile);
  decode_function *decode;
};
#define TYPE(name, id, elements, bytes) [id] = {elements, bytes, dot_##name, unpack_##name, decode_##name},
static const struct weight_type weight_types[] = {CX_QUANTS(TYPE)};
#undef TYPE

/* In the order of the list: what struct cx_row calls decode. */
#define DECODE(name, id, elements, bytes) decode_##name,
static decode_function *const decode_functions[] = {CX_QUANTS(DECODE)};
#undef DECODE
#undef UNIT

/* The rows of a matrix [.., k] from `row` on. */
CX_INLINE struct weights weights_at(const struct cx_run *run, struct cx_ref ref, size_t k, size_t row) {
  const struct weight_type *type = &weight_types[ref.type];
  const size_t row_bytes = k / type->block_elements * type->block_bytes;
  const struct weights weights = {(const uint8_t *)cx_at(run, ref) + row * row_bytes, row_bytes, k};
  return weights;
}

#endif
