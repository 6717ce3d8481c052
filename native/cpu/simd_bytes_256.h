/* The byte words of simd_scalar.h, which says what each does, on one 256-bit register: what the AVX2 and AVX-512 rows
 * share. Included by their simd_<isa>.h, which adds the conversions to floats.
 */
#ifndef CX_SIMD_BYTES_256_H
#define CX_SIMD_BYTES_256_H

typedef __m256i vb;

CX_INLINE vb vb_load(const void *p) { return _mm256_loadu_si256(p); }
CX_INLINE vb vb_nibbles(const void *p) {
  const __m256i pairs = _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
  const __m256i moved = _mm256_srlv_epi64(pairs, _mm256_setr_epi64x(0, 0, 4, 4));
  return _mm256_and_si256(moved, _mm256_set1_epi8(15));
}
CX_INLINE vb vb_set1(uint8_t value) { return _mm256_set1_epi8((char)value); }
CX_INLINE vb vb_and(vb a, vb b) { return _mm256_and_si256(a, b); }
CX_INLINE vb vb_or(vb a, vb b) { return _mm256_or_si256(a, b); }
CX_INLINE vb vb_sub(vb a, vb b) { return _mm256_sub_epi8(a, b); }
/* There are no byte shifts: words are shifted and the bits that crossed over are cleared. */
CX_INLINE vb vb_shr(vb v, uint32_t n) { return vb_and(_mm256_srli_epi16(v, (int)n), vb_set1((uint8_t)(0xff >> n))); }
CX_INLINE vb vb_shl(vb v, uint32_t n) { return vb_and(_mm256_slli_epi16(v, (int)n), vb_set1((uint8_t)(0xff << n))); }
CX_INLINE vb vb_from_bits(uint32_t bits) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}
CX_INLINE vb vb_lookup(const int8_t table[16], vb v) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), v);
}
CX_INLINE vb vb_count_16(void) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
CX_INLINE vb vb_mask_15(void) {
  return _mm256_setr_epi64x(-1, 0x00ffffffffffffff, -1, 0x00ffffffffffffff);
}
CX_INLINE vb vb_pick_16(vb table, vb v) { return _mm256_shuffle_epi8(table, v); }

#endif
