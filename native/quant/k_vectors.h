/* The factors of a block of 256 elements, as floats in memory.
 *
 * A kernel takes them once a block; a broadcast from memory is a load, where one from a register would be a shuffle, and
 * shuffles are what the decoders have most of. quants.h includes this file where vector words are included (CX_LANES is
 * defined).
 */
#ifndef CX_K_VECTORS_H
#define CX_K_VECTORS_H

#define CX_FACTORS 32 /* at most: 16 scales and 16 minimums */

/* The eight scales of a q4_k or q5_k block, then its eight minimums with their sign changed: block points at scale,
 * minimum, scales[12]. Scale times code is exact (11 + 6 + 5 bits of 24), so scale * code - minimum may be one fused
 * multiply-add: it rounds once either way. */
CX_INLINE void cx_k_factors(const uint8_t *block, float factors[CX_FACTORS]) {
#if CX_LANES >= 8
  /* The three words of scales as a, a, b, b and c, c, c, c. */
  const __m128i words = _mm_loadu_si128((const __m128i *)block);
  const __m128i own = _mm_shuffle_epi32(words, _MM_SHUFFLE(2, 2, 1, 1)), last = _mm_shuffle_epi32(words, _MM_SHUFFLE(3, 3, 3, 3));
  const __m128i low = _mm_and_si128(_mm_srlv_epi32(own, _mm_setr_epi32(0, 2, 0, 2)), _mm_setr_epi32(0x3f3f3f3f, 0x30303030, 0x3f3f3f3f, 0x30303030));
  const __m128i high = _mm_and_si128(_mm_srlv_epi32(last, _mm_setr_epi32(0, 0, 0, 4)), _mm_setr_epi32(0, 0x0f0f0f0f, 0, 0x0f0f0f0f));
  const __m128i bytes = _mm_or_si128(low, high);
  const __m128 both = _mm_cvtph_ps(words);
  const __m256 scale = _mm256_broadcastss_ps(both), minimum = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
  _mm256_storeu_ps(factors, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))));
  const __m256 codes = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
  _mm256_storeu_ps(factors + 8, _mm256_mul_ps(_mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f)), codes));
#else
  const float scale = cx_read_f16(block), minimum = -cx_read_f16(block + 2);
  for (uint32_t j = 0; j < 8; j++) {
    factors[j] = scale * (float)cx_k_scale(block + 4, j, 0);
    factors[j + 8] = minimum * (float)cx_k_scale(block + 4, j, 1);
  }
#endif
}

/* Those of one block of each of CX_LANES rows, as the factors of its eight panels: value = factors[0] * code +
 * factors[1]. */
CX_INLINE void cx_k_panel_factors(const uint8_t *block, size_t stride, struct panel *out) {
  vi head[4];
  vi_interleave(block, stride, head);
  const vf scale = vi_f16(head[0]), minimum = vf_sub(vf_zero(), vi_f16(head[0] >> 16));
  const vi a = head[1], b = head[2], c = head[3];
  const vi scales[2] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)};
  const vi minimums[2] = {b & 0x3f3f3f3fu, (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)};
  CX_UNROLL for (int g = 0; g < 8; g++) {
    out[g].factors[0] = vf_mul(scale, vi_byte(scales[g / 4], g % 4));
    out[g].factors[1] = vf_mul(minimum, vi_byte(minimums[g / 4], g % 4));
  }
}

#endif
