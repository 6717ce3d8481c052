/* q4_0: 32 four-bit codes with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * (code - 8). The low nibble of byte i is element i, the high nibble element i + 16.
 */
#ifndef CX_Q4_0_H
#define CX_Q4_0_H

struct cx_q4_0 {
  uint8_t scale[2]; /* f16 */
  uint8_t codes[16];
};

static inline void cx_q4_0_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q4_0 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t i = 0; i < 16; i++) {
      dst[i] = scale * (float)((block->codes[i] & 15) - 8);
      dst[i + 16] = scale * (float)((block->codes[i] >> 4) - 8);
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q4_0_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_q4_0 *block = (const struct cx_q4_0 *)row + group;
  const vf scale = vf_set1_f16(block->scale);
#if CX_LANES == 16
  const __m512i wide = avx512_wide(block->codes);
  out[0] = _mm512_permutexvar_ps(wide, vf_mul(scale, vf_sub(avx512_iota(), vf_set1(8.0f))));
  out[1] = vf_mul(scale, avx512_high_nibbles(wide, 8));
#elif CX_LANES == 8
  avx_nibbles(block->codes, 8, out);
  CX_UNROLL for (int i = 0; i < 4; i++) out[i] = vf_mul(scale, out[i]);
#else
  const vb codes = vb_sub(vb_nibbles(block->codes), vb_set1(8));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vb_floats_i8(codes, i));
#endif
}

CX_INLINE void cx_q4_0_panel(const uint8_t *block, size_t stride, struct panel *out) {
  vi_interleave_nibbles(block + 2, stride, out->codes);
  out->factors[0] = vi_f16(vi_words(block, stride));
}
#endif

#endif
