/* iq4_xs: 256 four-bit codes into a table; groups of 32 with a 6-bit signed scale. Own: the block layout and its decoders; quants.h
 * includes this file.
 *
 * value = (scale * (group scale - 32)) * cx_iq4_values[code]. A group's 16 bytes of codes lie as in iq4_nl.
 */
#ifndef CX_IQ4_XS_H
#define CX_IQ4_XS_H

struct cx_iq4_xs {
  uint8_t scale[2];       /* f16 */
  uint8_t scales_high[2]; /* u16: two bits a group */
  uint8_t scales_low[4];  /* a nibble a group */
  uint8_t codes[128];
};

/* The scale of group j, -32 to 31. */
static inline int cx_iq4_xs_scale(const struct cx_iq4_xs *block, uint32_t j) {
  const int low = block->scales_low[j / 2] >> j % 2 * 4 & 15;
  const int high = cx_read_u16(block->scales_high) >> 2 * j & 3;
  return (low | high << 4) - 32;
}

static inline void cx_iq4_xs_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_iq4_xs *block = src;
  for (; n != 0; n -= 256, block++) {
    for (uint32_t j = 0; j < 8; j++, dst += 32) {
      const float scale = cx_read_f16(block->scale) * (float)cx_iq4_xs_scale(block, j);
      for (uint32_t i = 0; i < 16; i++) {
        const uint32_t pair = block->codes[16 * j + i];
        dst[i] = scale * (float)cx_iq4_values[pair & 15];
        dst[i + 16] = scale * (float)cx_iq4_values[pair >> 4];
      }
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_iq4_xs_factors(const uint8_t *bytes, float factors[CX_FACTORS]) {
  const struct cx_iq4_xs *block = (const struct cx_iq4_xs *)bytes;
  const float scale = cx_read_f16(block->scale);
  for (uint32_t j = 0; j < 8; j++) factors[j] = scale * (float)cx_iq4_xs_scale(block, j);
}

CX_INLINE void cx_iq4_xs_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_iq4_xs *block = (const struct cx_iq4_xs *)row + group / 8;
  const uint32_t g = group % 8;
  const vf scale = vf_set1(factors[g]);
#if CX_LANES == 16
  avx512_lookup_nibbles(block->codes + 16 * g, vf_mul(scale, vf_from_i8(cx_iq4_values)), out);
#else
  const vb codes = vb_lookup(cx_iq4_values, vb_nibbles(block->codes + 16 * g));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vb_floats_i8(codes, i));
#endif
}
#endif

#endif
