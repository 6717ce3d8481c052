/* bf16: the top half of an f32. Own: the layout and the decoder. Shared words come from numbers.h;
 * quants.h includes this file. A file's tensor may be unaligned.
 */
#ifndef CX_BF16_H
#define CX_BF16_H

struct cx_bf16 {
  uint8_t value[2];
};

static inline void cx_bf16_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_bf16 *elements = src;
  for (uint64_t i = 0; i < n; i++) dst[i] = cx_f32_of_bf16(cx_read_u16(elements[i].value));
}

#ifdef CX_LANES
CX_INLINE void cx_bf16_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_load_bf16(row + 64 * group + 2 * CX_LANES * i);
}
#endif

#endif
