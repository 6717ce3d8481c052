/* q5_0: 32 five-bit codes with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * (code - 16). Bit i of high is the fifth bit of element i; the low nibble of byte i of codes belongs to
 * element i, the high nibble to element i + 16.
 */
#ifndef CX_Q5_0_H
#define CX_Q5_0_H

struct cx_q5_0 {
  uint8_t scale[2]; /* f16 */
  uint8_t high[4];  /* u32 */
  uint8_t codes[16];
};

static inline void cx_q5_0_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q5_0 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    const uint32_t high = cx_read_u32(block->high);
    for (uint32_t i = 0; i < 16; i++) {
      const int low = (block->codes[i] & 15) | (int)(high >> i & 1) << 4;
      const int upper = block->codes[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
      dst[i] = scale * (float)(low - 16);
      dst[i + 16] = scale * (float)(upper - 16);
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q5_0_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_q5_0 *block = (const struct cx_q5_0 *)row + group;
  const vf scale = vf_set1_f16(block->scale);
  const uint32_t high = cx_read_u32(block->high);
#if CX_LANES == 16
  const vf below = vf_mul(scale, vf_sub(avx512_iota(), vf_set1(16.0f))), above = vf_mul(scale, avx512_iota());
  avx512_lookup_nibbles_2(block->codes, (__mmask16)high, (__mmask16)(high >> 16), below, above, out);
#else
  /* A clear fifth bit takes 16 off. */
  const vb missing = vb_and(vb_from_bits(~high), vb_set1(16)), codes = vb_sub(vb_nibbles(block->codes), missing);
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vb_floats_i8(codes, i));
#endif
}

CX_INLINE void cx_q5_0_panel(const uint8_t *block, size_t stride, struct panel *out) {
  const vi high = vi_words(block + 2, stride);
  vi_interleave_nibbles(block + 6, stride, out->codes);
  CX_UNROLL for (int i = 0; i < 8; i++) out->codes[i] |= vi_fifth_bits(high, i);
  out->factors[0] = vi_f16(vi_words(block, stride));
}
#endif

#endif
