/* iq4_nl: 32 four-bit codes into a table, with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * cx_iq4_values[code]. The low nibble of byte i is element i, the high nibble element i + 16.
 */
#ifndef CX_IQ4_NL_H
#define CX_IQ4_NL_H

struct cx_iq4_nl {
  uint8_t scale[2]; /* f16 */
  uint8_t codes[16];
};

static inline void cx_iq4_nl_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_iq4_nl *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t i = 0; i < 16; i++) {
      dst[i] = scale * (float)cx_iq4_values[block->codes[i] & 15];
      dst[i + 16] = scale * (float)cx_iq4_values[block->codes[i] >> 4];
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_iq4_nl_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_iq4_nl *block = (const struct cx_iq4_nl *)row + group;
  const vf scale = vf_set1_f16(block->scale);
#if CX_LANES == 16
  avx512_lookup_nibbles(block->codes, vf_mul(scale, vf_from_i8(cx_iq4_values)), out);
#else
  const vb codes = vb_lookup(cx_iq4_values, vb_nibbles(block->codes));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vb_floats_i8(codes, i));
#endif
}
#endif

#endif
