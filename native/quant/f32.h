/* f32: plain 32-bit floats. Own: the layout and the decoder. Shared words come from numbers.h;
 * quants.h includes this file. A file's tensor may be unaligned.
 */
#ifndef CX_F32_H
#define CX_F32_H

struct cx_f32 {
  uint8_t value[4];
};

static inline void cx_f32_decode(const void *src, uint64_t n, float *dst) { memcpy(dst, src, n * sizeof *dst); }

#ifdef CX_LANES
CX_INLINE void cx_f32_load32(const uint8_t *row, size_t group, vf out[CX_FLOATS_32]) {
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++) out[i] = vf_load(row + 128 * group + 4 * CX_LANES * i);
}
#endif

#endif
