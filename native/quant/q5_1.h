/* q5_1: 32 five-bit codes with an f16 scale and minimum. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * code + minimum, rounded twice. Bit i of high is the fifth bit of element i; the low nibble of byte i of codes
 * belongs to element i, the high nibble to element i + 16.
 */
#ifndef CX_Q5_1_H
#define CX_Q5_1_H

struct cx_q5_1 {
  uint8_t scale[2];   /* f16 */
  uint8_t minimum[2]; /* f16 */
  uint8_t high[4];    /* u32 */
  uint8_t codes[16];
};

static inline void cx_q5_1_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q5_1 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale), minimum = cx_read_f16(block->minimum);
    const uint32_t high = cx_read_u32(block->high);
    for (uint32_t i = 0; i < 16; i++) {
      const uint32_t low = (block->codes[i] & 15u) | (high >> i & 1) << 4;
      const uint32_t upper = (uint32_t)block->codes[i] >> 4 | (high >> (i + 16) & 1) << 4;
      dst[i] = scale * (float)low + minimum;
      dst[i + 16] = scale * (float)upper + minimum;
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q5_1_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_q5_1 *block = (const struct cx_q5_1 *)row + group;
  const vf scale = vf_set1_f16(block->scale), minimum = vf_set1_f16(block->minimum);
  const uint32_t high = cx_read_u32(block->high);
#if CX_LANES == 16
  const vf below = vf_fma(scale, avx512_iota(), minimum);
  const vf above = vf_fma(scale, vf_add(avx512_iota(), vf_set1(16.0f)), minimum);
  avx512_lookup_nibbles_2(block->codes, (__mmask16)high, (__mmask16)(high >> 16), below, above, out);
#else
  const vb codes = vb_or(vb_nibbles(block->codes), vb_and(vb_from_bits(high), vb_set1(16)));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_fma(scale, vb_floats_u8(codes, i), minimum);
#endif
}

CX_INLINE void cx_q5_1_panel(const uint8_t *block, size_t stride, struct panel *out) {
  const vi both = vi_words(block, stride), high = vi_words(block + 4, stride);
  vi_interleave_nibbles(block + 8, stride, out->codes);
  CX_UNROLL for (int i = 0; i < 8; i++) out->codes[i] |= vi_fifth_bits(high, i);
  out->factors[0] = vi_f16(both);
  out->factors[1] = vi_f16(both >> 16);
}
#endif

#endif
