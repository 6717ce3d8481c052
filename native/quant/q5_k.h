/* q5_k: 256 five-bit codes; groups of 32 with a 6-bit scale and minimum. Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * As q4_k, with bit j of high[l] the fifth bit of element l of group j.
 */
#ifndef CX_Q5_K_H
#define CX_Q5_K_H

struct cx_q5_k {
  uint8_t scale[2];   /* f16 */
  uint8_t minimum[2]; /* f16 */
  uint8_t scales[12]; /* cx_k_scale */
  uint8_t high[32];
  uint8_t codes[128];
};

static inline void cx_q5_k_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q5_k *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    for (uint32_t j = 0; j < 8; j++) {
      const float scale = cx_read_f16(block->scale) * (float)cx_k_scale(block->scales, j, 0);
      const float minimum = cx_read_f16(block->minimum) * (float)cx_k_scale(block->scales, j, 1);
      for (uint32_t l = 0; l < 32; l++) {
        const uint32_t low = block->codes[j / 2 * 32 + l] >> j % 2 * 4 & 15u;
        const uint32_t code = low | (block->high[l] >> j & 1u) << 4;
        dst[j * 32 + l] = scale * (float)code - minimum;
      }
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q5_k_factors(const uint8_t *block, float factors[CX_FACTORS]) { cx_k_factors(block, factors); }

CX_INLINE void cx_q5_k_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_q5_k *block = (const struct cx_q5_k *)row + group / 8;
  const uint32_t g = group % 8;
  const vf scale = vf_set1(factors[g]), minimum = vf_set1(factors[g + 8]);
  const vb low = vb_and(vb_shr(vb_load(block->codes + g / 2 * 32), g % 2 * 4), vb_set1(15));
  const vb high = vb_shl(vb_and(vb_shr(vb_load(block->high), g), vb_set1(1)), 4), codes = vb_or(low, high);
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_fma(scale, vb_floats_u8(codes, i), minimum);
}

CX_INLINE void cx_q5_k_panel(const uint8_t *block, size_t stride, struct panel *out) {
  vi high[8];
  cx_k_panel_factors(block, stride, out);
  vi_interleave(block + 16, stride, high);
  vi_interleave(block + 32, stride, high + 4);
  CX_UNROLL for (size_t j = 0; j < 4; j++) {
    vi pairs[8];
    vi_interleave(block + 48 + 32 * j, stride, pairs);
    vi_interleave(block + 64 + 32 * j, stride, pairs + 4);
    CX_UNROLL for (int i = 0; i < 8; i++) {
      const vi bits = high[i] >> 2 * j;
      out[2 * j].codes[i] = (pairs[i] & 0x0f0f0f0fu) | (bits & 0x01010101u) << 4;
      out[2 * j + 1].codes[i] = (pairs[i] >> 4 & 0x0f0f0f0fu) | (bits >> 1 & 0x01010101u) << 4;
    }
  }
}
#endif

#endif
