/* What this row can do at most: read memory, and multiply and add in registers. `caldrix bench` measures them beside a
 * model, so that a speed can be given as a part of the limit it runs into.
 *
 * Each does one piece of work and returns a checksum of it, so that nothing can be left out. The products have the
 * tile of a matrix product (matmul.h): CX_TILE_WEIGHTS by CX_TILE_ROWS sums in registers, operands from the first-level
 * cache.
 */

#define READ_BYTES 256          /* of one round: eight sums at a time, so that none waits for itself */
#define READ_AHEAD 4096         /* bytes; with less, one thread stays below what memory gives */
#define PEAK_ROUNDS 256         /* over the data, a piece */
#define PEAK_TILE (CX_TILE_WEIGHTS * CX_TILE_ROWS)
#define PEAK_VECTORS (CX_TILE_WEIGHTS + CX_TILE_ROWS)

/* A byte of every position counts: the parts are mixed by a multiplication before they are added. */
static uint64_t mix(uint64_t sum, uint64_t part) { return (sum ^ part) * 0x9e3779b97f4a7c15u; }

static uint64_t read_limit_run(const void *data, uint64_t bytes) {
  const uint8_t *at = data, *end = at + bytes / READ_BYTES * READ_BYTES;
  vb sums[READ_BYTES / 32];
  for (int i = 0; i < READ_BYTES / 32; i++) sums[i] = vb_set1(0);
  for (; at < end; at += READ_BYTES) {
    for (int i = 0; i < READ_BYTES; i += 64) cx_prefetch(at + READ_AHEAD + i);
    CX_UNROLL for (int i = 0; i < READ_BYTES / 32; i++) sums[i] = vb_sub(sums[i], vb_load(at + 32 * i));
  }
  uint64_t parts[READ_BYTES / 8], sum = 0;
  memcpy(parts, sums, sizeof parts);
  for (size_t i = 0; i < READ_BYTES / 8; i++) sum = mix(sum, parts[i]);
  return sum;
}

static uint64_t read_limit_work(uint64_t bytes) { return bytes / READ_BYTES * READ_BYTES; }

/* data: floats. */
static uint64_t fma_limit_run(const void *data, uint64_t bytes) {
  const uint64_t step = PEAK_VECTORS * CX_LANES, n_steps = bytes / 4 / step;
  vf sums[CX_TILE_WEIGHTS][CX_TILE_ROWS];
  CX_UNROLL for (int w = 0; w < CX_TILE_WEIGHTS; w++)
    CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) sums[w][r] = vf_zero();
  for (int round = 0; round < PEAK_ROUNDS; round++) {
    const float *at = data;
    for (uint64_t i = 0; i < n_steps; i++, at += step) {
      vf x[CX_TILE_ROWS];
      CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) x[r] = vf_load(at + r * CX_LANES);
      CX_UNROLL for (int w = 0; w < CX_TILE_WEIGHTS; w++) {
        vf weight = vf_load(at + (CX_TILE_ROWS + w) * CX_LANES);
        CX_KEEP(weight);
        CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) sums[w][r] = vf_fma(x[r], weight, sums[w][r]);
      }
    }
  }
  uint64_t sum = 0;
  for (int w = 0; w < CX_TILE_WEIGHTS; w++) {
    for (int r = 0; r < CX_TILE_ROWS; r++) {
      const float value = vf_sum(sums[w][r]);
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      sum = mix(sum, bits);
    }
  }
  return sum;
}

static uint64_t fma_limit_work(uint64_t bytes) {
  return bytes / 4 / (PEAK_VECTORS * CX_LANES) * PEAK_ROUNDS * PEAK_TILE * CX_LANES * 2;
}

/* data: bytes below 128, products of unsigned with signed ones. */
static uint64_t int8_limit_run(const void *data, uint64_t bytes) {
  const uint64_t step = PEAK_VECTORS * CX_DOT_BYTES, n_steps = bytes / step;
  vd sums[CX_TILE_WEIGHTS][CX_TILE_ROWS];
  CX_UNROLL for (int w = 0; w < CX_TILE_WEIGHTS; w++)
    CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) sums[w][r] = vd_zero();
  for (int round = 0; round < PEAK_ROUNDS; round++) {
    const uint8_t *at = data;
    for (uint64_t i = 0; i < n_steps; i++, at += step) {
      vd x[CX_TILE_ROWS];
      CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) x[r] = vd_load(at + r * CX_DOT_BYTES);
      CX_UNROLL for (int w = 0; w < CX_TILE_WEIGHTS; w++) {
        const vd weight = vd_load(at + (CX_TILE_ROWS + w) * CX_DOT_BYTES);
        CX_UNROLL for (int r = 0; r < CX_TILE_ROWS; r++) sums[w][r] = vd_dot(sums[w][r], x[r], weight);
      }
    }
  }
  uint64_t sum = 0;
  for (int w = 0; w < CX_TILE_WEIGHTS; w++)
    for (int r = 0; r < CX_TILE_ROWS; r++) sum = mix(sum, vd_sum(sums[w][r]));
  return sum;
}

static uint64_t int8_limit_work(uint64_t bytes) {
  return bytes / (PEAK_VECTORS * CX_DOT_BYTES) * PEAK_ROUNDS * PEAK_TILE * CX_DOT_BYTES * 2;
}
