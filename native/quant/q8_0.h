/* q8_0: 32 signed bytes with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * q
 */
#ifndef CX_Q8_0_H
#define CX_Q8_0_H

struct cx_q8_0 {
  uint8_t scale[2]; /* f16 */
  int8_t q[32];
};

static inline void cx_q8_0_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q8_0 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t i = 0; i < 32; i++) dst[i] = scale * (float)block->q[i];
  }
}

#ifdef CX_LANES
CX_INLINE void cx_q8_0_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  const struct cx_q8_0 *block = (const struct cx_q8_0 *)row + group;
  const vf scale = vf_set1_f16(block->scale);
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_mul(scale, vf_from_i8(block->q + CX_LANES * i));
}

CX_INLINE void cx_q8_0_panel(const uint8_t *block, size_t stride, struct panel *out) {
  vi codes[8];
  vi_interleave(block + 2, stride, codes);
  vi_interleave(block + 18, stride, codes + 4);
  CX_UNROLL for (int i = 0; i < 8; i++) out->codes[i] = vi_code8(codes[i]);
  out->factors[0] = vi_f16(vi_words(block, stride));
}
#endif

#endif
