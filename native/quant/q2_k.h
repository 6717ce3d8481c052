/* q2_k: 256 two-bit codes; groups of 16 with a 4-bit scale and minimum. Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * value = (scale * low nibble of scales[g]) * code - minimum * high nibble of scales[g], g = element / 16.
 * Each half of 128 elements uses 32 bytes of codes: its quarter s, element l of 32, is bits 2s and 2s+1 of byte l.
 */
#ifndef CX_Q2_K_H
#define CX_Q2_K_H

struct cx_q2_k {
  uint8_t scales[16];
  uint8_t codes[64];
  uint8_t scale[2];   /* f16 */
  uint8_t minimum[2]; /* f16 */
};

static inline void cx_q2_k_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q2_k *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    const float scale = cx_read_f16(block->scale), minimum = cx_read_f16(block->minimum);
    for (uint32_t e = 0; e < 256; e++) {
      const uint32_t code = block->codes[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3u;
      const uint32_t group = block->scales[e / 16];
      dst[e] = scale * (float)(group & 15) * (float)code - minimum * (float)(group >> 4);
    }
  }
}

#ifdef CX_LANES
/* The scales, then the minimums with their sign changed. */
CX_INLINE void cx_q2_k_factors(const uint8_t *bytes, float factors[CX_FACTORS]) {
  const struct cx_q2_k *block = (const struct cx_q2_k *)bytes;
  const float scale = cx_read_f16(block->scale), minimum = cx_read_f16(block->minimum);
  for (uint32_t i = 0; i < 16; i++) {
    factors[i] = scale * (float)(block->scales[i] & 15);
    factors[i + 16] = minimum * -(float)(block->scales[i] >> 4);
  }
}

CX_INLINE void cx_q2_k_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_q2_k *block = (const struct cx_q2_k *)row + group / 8;
  const uint32_t g = group % 8;
  const vb codes = vb_and(vb_shr(vb_load(block->codes + g / 4 * 32), g % 4 * 2), vb_set1(3));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) {
    const uint32_t own = 2 * g + (uint32_t)i * CX_LANES / 16;
    out[i] = vf_fma(vf_set1(factors[own]), vb_floats_u8(codes, i), vf_set1(factors[own + 16]));
  }
}
#endif

#endif
