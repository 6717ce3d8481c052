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

#endif
