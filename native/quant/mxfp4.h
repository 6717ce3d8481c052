/* mxfp4: 32 four-bit floats (e2m1) with one power-of-two scale (e8m0). Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * value = 2^(exponent - 128) * cx_mxfp4_values[code]; the table is doubled, hence 128 and not 127. The low nibble of byte i is
 * element i, the high nibble element i + 16.
 */
#ifndef CX_MXFP4_H
#define CX_MXFP4_H

struct cx_mxfp4 {
  uint8_t exponent;
  uint8_t codes[16];
};

/* 2^(exponent - 128); the two smallest are subnormal in f32. */
static inline float cx_mxfp4_scale(uint8_t exponent) {
  return cx_f32_of_bits(exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

static inline void cx_mxfp4_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_mxfp4 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_mxfp4_scale(block->exponent);
    for (uint32_t i = 0; i < 16; i++) {
      dst[i] = scale * (float)cx_mxfp4_values[block->codes[i] & 15];
      dst[i + 16] = scale * (float)cx_mxfp4_values[block->codes[i] >> 4];
    }
  }
}

#ifdef CX_LANES
CX_INLINE void cx_mxfp4_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_mxfp4 *block = (const struct cx_mxfp4 *)row + group;
  const vf scale = vf_set1(cx_mxfp4_scale(block->exponent));
#if CX_LANES == 16
  avx512_lookup_nibbles(block->codes, vf_mul(scale, vf_from_i8(cx_mxfp4_values)), out);
#else
  const vb codes = vb_lookup(cx_mxfp4_values, vb_nibbles(block->codes));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vb_floats_i8(codes, i));
#endif
}
#endif

#endif
