/* q4_1: 32 four-bit codes with an f16 scale and minimum. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * code + minimum, rounded twice. The low nibble of byte i is element i, the high nibble element i + 16.
 */
#ifndef CX_Q4_1_H
#define CX_Q4_1_H

struct cx_q4_1 {
  uint8_t scale[2];   /* f16 */
  uint8_t minimum[2]; /* f16 */
  uint8_t codes[16];
};

static inline void cx_q4_1_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q4_1 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale), minimum = cx_read_f16(block->minimum);
    for (uint32_t i = 0; i < 16; i++) {
      dst[i] = scale * (float)(block->codes[i] & 15) + minimum;
      dst[i + 16] = scale * (float)(block->codes[i] >> 4) + minimum;
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q4_1_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_q4_1 *block = (const struct cx_q4_1 *)row + group;
  const vf scale = vf_set1_f16(block->scale), minimum = vf_set1_f16(block->minimum);
#if CX_LANES == 16
  const __m512i wide = avx512_wide(block->codes);
  out[0] = _mm512_permutexvar_ps(wide, vf_fma(scale, avx512_iota(), minimum));
  out[1] = vf_fma(scale, avx512_high_nibbles(wide, 0), minimum);
#elif CX_LANES == 8
  avx_nibbles(block->codes, 0, out);
  CX_UNROLL for (int i = 0; i < 4; i++) out[i] = vf_fma(scale, out[i], minimum);
#else
  const vb codes = vb_nibbles(block->codes);
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_fma(scale, vb_floats_u8(codes, i), minimum);
#endif
}

CX_INLINE void cx_q4_1_panel(const uint8_t *block, size_t stride, struct panel *out) {
  const vi both = vi_words(block, stride);
  vi_interleave_nibbles(block + 4, stride, out->codes);
  out->factors[0] = vi_f16(both);
  out->factors[1] = vi_f16(both >> 16);
}
#endif

#endif
