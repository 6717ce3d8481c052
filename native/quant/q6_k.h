/* q6_k: 256 six-bit codes; groups of 16 with a signed 8-bit scale. Own: the block layout and its decoders; quants.h includes
 * this file.
 *
 * value = (scale * scales[e / 16]) * (code - 32). In half h of 128, quarter s of 32, element l: the low four bits are nibble s/2 of
 * codes[64h + 32(s % 2) + l], the high two are bits 2s and 2s+1 of high[32h + l].
 */
#ifndef CX_Q6_K_H
#define CX_Q6_K_H

struct cx_q6_k {
  uint8_t codes[128];
  uint8_t high[64];
  int8_t scales[16];
  uint8_t scale[2]; /* f16 */
};

static inline void cx_q6_k_decode(const void *src, uint64_t n, float *dst) {
  const struct cx_q6_k *block = src;
  for (; n != 0; n -= 256, block++, dst += 256) {
    const float scale = cx_read_f16(block->scale);
    for (uint32_t e = 0; e < 256; e++) {
      const uint32_t h = e / 128, s = e % 128 / 32, l = e % 32;
      const int low = block->codes[64 * h + 32 * (s % 2) + l] >> s / 2 * 4 & 15;
      const int high = block->high[32 * h + l] >> 2 * s & 3;
      dst[e] = scale * (float)block->scales[e / 16] * (float)((low | high << 4) - 32);
    }
  }
}

#endif
