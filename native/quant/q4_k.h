/* q4_k: 256 four-bit codes; groups of 32 with a 6-bit scale and minimum. Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * value = (scale * group scale) * code - minimum * group minimum. Each 32 bytes of codes hold two groups: the low nibbles one,
 * the high nibbles the next.
 */
#ifndef CX_Q4_K_H
#define CX_Q4_K_H

struct cx_q4_k {
  uint8_t scale[2];   /* f16 */
  uint8_t minimum[2]; /* f16 */
  uint8_t scales[12]; /* cx_k_scale */
  uint8_t codes[128];
};

static inline void cx_q4_k_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q4_k *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    for (uint32_t j = 0; j < 8; j++) {
      const float scale = cx_read_f16(block->scale) * (float)cx_k_scale(block->scales, j, 0);
      const float minimum = cx_read_f16(block->minimum) * (float)cx_k_scale(block->scales, j, 1);
      for (uint32_t l = 0; l < 32; l++) {
        const uint32_t code = block->codes[j / 2 * 32 + l] >> j % 2 * 4 & 15u;
        dst[j * 32 + l] = scale * (float)code - minimum;
      }
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q4_k_factors(const uint8_t *block, float factors[CX_FACTORS]) { cx_k_factors(block, factors); }

CX_INLINE void cx_q4_k_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_q4_k *block = (const struct cx_q4_k *)row + group / 8;
  const uint32_t g = group % 8;
  const uint8_t *codes = block->codes + g / 2 * 32;
  const vf scale = vf_set1(factors[g]), minimum = vf_set1(factors[g + 8]);
#if CX_LANES == 16
  CX_UNROLL for (int i = 0; i < 2; i++) {
    const __m512i wide = avx512_wide(codes + 16 * i);
    out[i] = g % 2 ? vf_fma(scale, avx512_high_nibbles(wide, 0), minimum)
                   : _mm512_permutexvar_ps(wide, vf_fma(scale, avx512_iota(), minimum));
  }
#elif CX_LANES == 8
  CX_UNROLL for (int i = 0; i < 4; i++) {
    const __m256i wide = avx_wide(codes + 8 * i);
    out[i] = vf_fma(scale, g % 2 ? avx_high_nibbles(wide, 0) : avx_low_nibbles(wide, 0), minimum);
  }
#else
  const vb all = vb_and(vb_shr(vb_load(codes), g % 2 * 4), vb_set1(15));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_fma(scale, vb_floats_u8(all, i), minimum);
#endif
}

CX_INLINE void cx_q4_k_panel(const uint8_t *block, size_t stride, struct panel *out) {
  cx_k_panel_factors(block, stride, out);
  CX_UNROLL for (size_t j = 0; j < 4; j++) {
    vi pairs[8];
    vi_interleave(block + 16 + 32 * j, stride, pairs);
    vi_interleave(block + 32 + 32 * j, stride, pairs + 4);
    CX_UNROLL for (int i = 0; i < 8; i++) {
      out[2 * j].codes[i] = pairs[i] & 0x0f0f0f0fu;
      out[2 * j + 1].codes[i] = pairs[i] >> 4 & 0x0f0f0f0fu;
    }
  }
}
#endif

#endif
