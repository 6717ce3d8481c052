/* f32: plain 32-bit floats. Own: the layout and the decoder. Shared words come from numbers.h;
 * quants.h includes this file. A file's tensor may be unaligned.
 */
#ifndef CX_F32_H
#define CX_F32_H

struct cx_f32 {
  uint8_t value[4];
};

static inline void cx_f32_decode(const void *src, uint64_t n, float *dst) { memcpy(dst, src, n * sizeof *dst); }

#endif
