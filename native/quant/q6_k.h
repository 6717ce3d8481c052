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

#ifdef CX_LANES
CX_INLINE void cx_q6_k_factors(const uint8_t *bytes, float factors[CX_FACTORS]) {
  const struct cx_q6_k *block = (const struct cx_q6_k *)bytes;
  const vf scale = vf_set1_f16(block->scale);
  CX_UNROLL for (int i = 0; i < 16 / CX_LANES; i++)
    vf_store(factors + CX_LANES * i, vf_mul(scale, vf_from_i8(block->scales + CX_LANES * i)));
}

CX_INLINE void cx_q6_k_load32(const uint8_t *row, size_t group, const float *factors, vf out[CX_FLOATS_32]) {
  const struct cx_q6_k *block = (const struct cx_q6_k *)row + group / 8;
  const uint32_t g = group % 8, h = g / 4, s = g % 4;
  const vb low = vb_and(vb_shr(vb_load(block->codes + 64 * h + 32 * (s % 2)), s / 2 * 4), vb_set1(15));
  const vb bits = vb_load(block->high + 32 * h);
  const vb high = vb_and(s < 2 ? vb_shl(bits, 4 - 2 * s) : vb_shr(bits, 2 * s - 4), vb_set1(0x30));
  const vb codes = vb_sub(vb_or(low, high), vb_set1(32));
  CX_UNROLL for (int i = 0; i < CX_FLOATS_32; i++)
    out[i] = vf_mul(vf_set1(factors[2 * g + (uint32_t)i * CX_LANES / 16]), vb_floats_i8(codes, i));
}

CX_INLINE void cx_q6_k_panel(const uint8_t *block, size_t stride, struct panel *out) {
  const vf scale = vi_f16(vi_words(block + 206, stride) >> 16);
  vi scales[4];
  vi_interleave(block + 192, stride, scales);
  CX_UNROLL for (int g = 0; g < 8; g++)
    CX_UNROLL for (int j = 0; j < 2; j++)
      out[g].factors[j] = vf_mul(scale, vi_byte_i8(scales[g / 2], g % 2 * 2 + j));
  CX_UNROLL for (size_t h = 0; h < 2; h++) {
    vi high[8];
    vi_interleave(block + 128 + 32 * h, stride, high);
    vi_interleave(block + 144 + 32 * h, stride, high + 4);
    CX_UNROLL for (size_t s = 0; s < 2; s++) {
      vi pairs[8];
      struct panel *to = out + 4 * h + s;
      vi_interleave(block + 64 * h + 32 * s, stride, pairs);
      vi_interleave(block + 64 * h + 32 * s + 16, stride, pairs + 4);
      CX_UNROLL for (int i = 0; i < 8; i++) {
        const vi bits = high[i] >> 2 * s;
        to[0].codes[i] = (pairs[i] & 0x0f0f0f0fu) | (bits & 0x03030303u) << 4;
        to[2].codes[i] = (pairs[i] >> 4 & 0x0f0f0f0fu) | (bits >> 4 & 0x03030303u) << 4;
      }
    }
  }
}
#endif

#endif
