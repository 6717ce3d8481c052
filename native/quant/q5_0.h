/* q5_0: 32 five-bit codes with one f16 scale. Own: the block layout and its decoders; quants.h includes this file.
 *
 * value = scale * (code - 16). Bit i of high is the fifth bit of element i; the low nibble of byte i of codes belongs to
 * element i, the high nibble to element i + 16.
 */
#ifndef CX_Q5_0_H
#define CX_Q5_0_H

struct cx_q5_0 {
  uint8_t scale[2]; /* f16 */
  uint8_t high[4];  /* u32 */
  uint8_t codes[16];
};

static inline void cx_q5_0_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q5_0 *block = src;
  for (; n != 0; n -= 32, block++, dst += 32) {
    const float scale = cx_read_f16(block->scale);
    const uint32_t high = cx_read_u32(block->high);
    for (uint32_t i = 0; i < 16; i++) {
      const int low = (block->codes[i] & 15) | (int)(high >> i & 1) << 4;
      const int upper = block->codes[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
      dst[i] = scale * (float)(low - 16);
      dst[i + 16] = scale * (float)(upper - 16);
    }
  }
}

#endif
