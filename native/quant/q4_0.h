/* q4_0: 32 four-bit codes with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * (code - 8). The low nibble of byte i is element i, the high nibble element i + 16.
 */
#ifndef CX_Q4_0_H
#define CX_Q4_0_H

struct cx_q4_0 {
  uint8_t scale[2]; /* f16 */
  uint8_t codes[16];
};

static inline void cx_q4_0_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q4_0 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t i = 0; i < 16; i++) {
      dst[i] = scale * (float)((block->codes[i] & 15) - 8);
      dst[i + 16] = scale * (float)((block->codes[i] >> 4) - 8);
    }
  }
}

#endif
