/* q3_k: 256 three-bit codes; groups of 16 with a 6-bit signed scale. Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * value = (scale * (group scale - 32)) * (low - (high bit ? 0 : 4)). The low two bits lie as in q2_k; the high bit of element e
 * is bit e/32 of high[e % 32].
 */
#ifndef CX_Q3_K_H
#define CX_Q3_K_H

struct cx_q3_k {
  uint8_t high[32];
  uint8_t codes[64];
  uint8_t scales[12];
  uint8_t scale[2]; /* f16 */
};

/* The scale of group g of 16: four bits are a nibble of the first 8 bytes, two bits come from the last 4. -32 to 31. */
static inline int cx_q3_k_scale(const uint8_t scales[12], uint32_t g) {
  const int low = scales[g % 8] >> g / 8 * 4 & 15;
  const int high = scales[8 + g % 4] >> g / 4 * 2 & 3;
  return (low | high << 4) - 32;
}

static inline void cx_q3_k_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q3_k *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t e = 0; e < 256; e++) {
      const int low = block->codes[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3;
      const int high = block->high[e % 32] >> e / 32 & 1;
      dst[e] = scale * (float)cx_q3_k_scale(block->scales, e / 16) * (float)(low - (high ? 0 : 4));
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q3_k_factors(const uint8_t *bytes, float factors[CX_FACTORS]) {
  const struct cx_q3_k *block = (const struct cx_q3_k *)bytes;
  const float scale = cx_read_f16(block->scale);
  for (uint32_t i = 0; i < 16; i++) factors[i] = scale * (float)cx_q3_k_scale(block->scales, i);
}

CX_INLINE void cx_q3_k_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_q3_k *block = (const struct cx_q3_k *)row + group / 8;
  const uint32_t g = group % 8;
  const vb low = vb_and(vb_shr(vb_load(block->codes + g / 4 * 32), g % 4 * 2), vb_set1(3));
  const vb high = vb_shl(vb_and(vb_shr(vb_load(block->high), g), vb_set1(1)), 2);
  const vb codes = vb_sub(vb_or(low, high), vb_set1(4));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++)
    out[i] = vf_mul(vf_set1(factors[2 * g + (uint32_t)i * CX_LANES / 16]), vb_floats_i8(codes, i));
}
#endif

#endif
