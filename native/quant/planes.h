/* planes: 256 bf16 values without loss in 398 bytes; ours, never in a file of others. Own: the block layout and its decoders;
 * quants.h includes this file, planes.c packs.
 *
 * Weights use few exponents. The byte with sign and fraction stays; the exponent becomes a four-bit code: base - exponent for 0
 * to 14, or 15 for exponent 0 (zeros and subnormal numbers). The few whose exponent is outside that window are listed. A tensor
 * with a block that has more of them than the list holds is not packed.
 *
 * Within a group of 32, byte s holds element 8 * (s % 16 / 4) + 4 * (s / 16) + s % 4: joined with their exponents and widened
 * inside 128-bit lanes, bytes then come out in order. The low nibbles of a group's 16 code bytes belong to bytes 0 to 15.
 */
#ifndef CX_PLANES_H
#define CX_PLANES_H

#define CX_PLANES_ODD 6

struct cx_planes {
  uint8_t tops[256];  /* sign << 7 | fraction */
  uint8_t codes[128]; /* of exponents */
  uint8_t base;
  uint8_t n_odd;
  uint8_t odd_at[CX_PLANES_ODD]; /* positions in tops of values with an exponent of their own */
  uint8_t odd_exponent[CX_PLANES_ODD];
};

/* The element that byte s of a group stands for. */
static inline uint32_t cx_planes_element(uint32_t s) { return 8 * (s % 16 / 4) + 4 * (s / 16) + s % 4; }

static inline float cx_planes_value(uint32_t top, uint32_t exponent) {
  return cx_f32_of_bits((top & 0x80) << 24 | exponent << 23 | (top & 0x7f) << 16);
}

static inline void cx_planes_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_planes *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    for (uint32_t at = 0; at < 256; at++) {
      const uint32_t s = at % 32, code = block->codes[at / 32 * 16 + s % 16] >> s / 16 * 4 & 15u;
      uint32_t exponent = code == 15 ? 0 : (uint8_t)(block->base - code);
      for (uint32_t i = 0; i < block->n_odd && i < CX_PLANES_ODD; i++)
        if (block->odd_at[i] == at) exponent = block->odd_exponent[i];
      dst[at / 32 * 32 + cx_planes_element(s)] = cx_planes_value(block->tops[at], exponent);
    }
  }
}

#ifdef CX_LANES
/* A group's listed values put in place. Seldom called, and away from the loop around it. */
static CX_NOINLINE void cx_planes_mend(const struct cx_planes *block, uint32_t group, float values[32]) {
  for (uint32_t i = 0; i < block->n_odd && i < CX_PLANES_ODD; i++) {
    const uint32_t at = block->odd_at[i];
    if (at / 32 == group) values[cx_planes_element(at % 32)] = cx_planes_value(block->tops[at], block->odd_exponent[i]);
  }
}

CX_INLINE void cx_planes_factors(const uint8_t *block, float factors[CX_FACTORS]) { (void)block, (void)factors; }

CX_INLINE void cx_planes_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_planes *block = (const struct cx_planes *)row + group / 8;
  const uint32_t g = group % 8;
  (void)factors;
  const vb exponents = vb_and(vb_sub(vb_set1(block->base), vb_count_16()), vb_mask_15());
  const vb tops = vb_load(block->tops + 32 * g), codes = vb_nibbles(block->codes + 16 * g);
  const vb low = vb_or(vb_and(tops, vb_set1(0x7f)), vb_pick_16(vb_shl(exponents, 7), codes));
  const vb high = vb_or(vb_and(tops, vb_set1(0x80)), vb_pick_16(vb_shr(exponents, 1), codes));
  vb_floats_bf16(low, high, out);
  if (block->n_odd != 0) {
    float values[32];
    CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) vf_store(values + CX_LANES * i, out[i]);
    cx_planes_mend(block, g, values);
    CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_load(values + CX_LANES * i);
  }
}
#endif

#endif
