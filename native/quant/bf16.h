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

#endif
