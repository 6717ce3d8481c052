/* The vector words of simd_scalar.h, which says what each does, in AVX2 with FMA and F16C: eight lanes.
 *
 * For x86-64-v3.
 */
#ifndef CX_SIMD_AVX2_H
#define CX_SIMD_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "base/common.h"

#define CX_LANES 8
/* A matrix product keeps CX_TILE_WEIGHTS rows of weights times CX_TILE_ROWS rows of activations in registers: 12 of 16
 * registers. */
#define CX_TILE_WEIGHTS 6
#define CX_TILE_ROWS 2

typedef __m256 vf;

/* All bits of the first n lanes. Masked-out lanes of a masked load or store never fault. */
CX_INLINE __m256i avx_mask(size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

CX_INLINE vf vf_load(const void *p) { return _mm256_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
CX_INLINE vf vf_load_n(const void *p, size_t n) { return _mm256_maskload_ps(p, avx_mask(n)); }
CX_INLINE void vf_store_n(float *p, vf v, size_t n) { _mm256_maskstore_ps(p, avx_mask(n), v); }

CX_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
CX_INLINE vf vf_set1(float v) { return _mm256_set1_ps(v); }
CX_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
CX_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
CX_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
CX_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
CX_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
CX_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }

CX_INLINE float vf_sum(vf v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
CX_INLINE float vf_hmax(vf v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
/* Halves the lanes of two vectors per step, as vf_sum does; their order is chosen so that the sums come out in place.
 */
CX_INLINE __m256 avx_fold_4(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
CX_INLINE __m256 avx_fold_2(__m256 a, __m256 b) {
  const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
CX_INLINE vf vf_sums(const vf v[CX_LANES]) {
  const __m256 a = avx_fold_2(avx_fold_4(v[0], v[4]), avx_fold_4(v[1], v[5]));
  const __m256 b = avx_fold_2(avx_fold_4(v[2], v[6]), avx_fold_4(v[3], v[7]));
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

/* The first n 16-bit elements at p, zeros above. */
CX_INLINE __m128i avx_load_u16_n(const void *p, size_t n) {
  uint16_t lanes[8] = {0};
  memcpy(lanes, p, 2 * n);
  return _mm_loadu_si128((const __m128i *)lanes);
}

CX_INLINE vf avx_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
CX_INLINE vf vf_load_bf16(const void *p) { return avx_bf16(_mm_loadu_si128(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return avx_bf16(avx_load_u16_n(p, n)); }
CX_INLINE vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return _mm256_cvtph_ps(avx_load_u16_n(p, n)); }

CX_INLINE __m128i avx_to_bf16(vf v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}
CX_INLINE void vf_store_bf16(void *p, vf v) { _mm_storeu_si128(p, avx_to_bf16(v)); }
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) {
  uint16_t lanes[8];
  _mm_storeu_si128((__m128i *)lanes, avx_to_bf16(v));
  memcpy(p, lanes, 2 * n);
}

CX_INLINE vf vf_from_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
CX_INLINE vf vf_from_u8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p))); }

CX_INLINE vf vf_set1_f16(const void *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return _mm256_set1_ps(_cvtsh_ss(half));
}
CX_INLINE vf vf_broadcast(vf v, uint32_t lane) { return _mm256_permutevar8x32_ps(v, _mm256_set1_epi32((int)lane)); }

CX_INLINE vf vf_round(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* In two halves: 2^n itself may not be a normal number. */
CX_INLINE vf vf_scale2(vf v, vf n) {
  const __m256i power = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(power, 1), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(power, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(v, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

/* --- 32 bytes at a time */

#define CX_FLOATS_32 (32 / CX_LANES)

#include "simd_bytes_256.h"

/* The eight bytes of vector `index` in the low half. */
CX_INLINE __m128i avx_eight(vb v, int index) {
  const __m128i half = index < 2 ? _mm256_castsi256_si128(v) : _mm256_extracti128_si256(v, 1);
  return index % 2 ? _mm_srli_si128(half, 8) : half;
}
CX_INLINE vf vb_floats_i8(vb v, int index) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(avx_eight(v, index))); }
CX_INLINE vf vb_floats_u8(vb v, int index) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(avx_eight(v, index))); }

CX_INLINE void vb_floats_bf16(vb low, vb high, vf out[4]) {
  const __m256i zeros = _mm256_setzero_si256();
  const __m256i pairs[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  CX_UNROLL for (int i = 0; i < 2; i++) {
    out[2 * i] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zeros, pairs[i]));
    out[2 * i + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zeros, pairs[i]));
  }
}

/* Eight bytes as integers, and of those the low or high nibbles, less a small whole number. As the fraction of a float
 * whose last place counts 1 or 1/16 a nibble needs neither shift nor conversion. */
CX_INLINE __m256i avx_wide(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
CX_INLINE vf avx_low_nibbles(__m256i wide, int less) {
  const __m256i bits = _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi32(0x0f)), _mm256_set1_epi32(0x4b000000));
  return vf_sub(_mm256_castsi256_ps(bits), vf_set1(0x1p23f + (float)less));
}
CX_INLINE vf avx_high_nibbles(__m256i wide, int less) {
  const __m256i bits = _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi32(0xf0)), _mm256_set1_epi32(0x49000000));
  return vf_sub(_mm256_castsi256_ps(bits), vf_set1(0x1p19f + (float)less));
}

/* The low nibbles of 16 bytes, then their high nibbles, less `offset`, as four vectors of floats. For this row's half
 * of the block decoders only: a byte shuffle of a broadcast load widens without crossing lanes, which is 10 to 20 %
 * cheaper than vb_nibbles and vb_floats. */
CX_INLINE void avx_nibbles(const void *p, int offset, vf out[4]) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(p)), less = _mm256_set1_epi32(offset);
  const __m256i spread = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), zeros = _mm256_set1_epi32((int)0x80808000);
  CX_UNROLL for (int i = 0; i < 2; i++) {
    const __m256i index = _mm256_or_si256(_mm256_add_epi32(spread, _mm256_set1_epi32(8 * i)), zeros);
    const __m256i pairs = _mm256_shuffle_epi8(both, index);
    out[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(pairs, _mm256_set1_epi32(15)), less));
    out[i + 2] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(pairs, 4), less));
  }
}

#define CX_DOT_BYTES 32
typedef __m256i vd;

CX_INLINE vd vd_zero(void) { return _mm256_setzero_si256(); }
CX_INLINE vd vd_load(const void *p) { return _mm256_loadu_si256(p); }
CX_INLINE vd vd_dot(vd sum, vd a, vd b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
CX_INLINE uint32_t vd_sum(vd sum) {
  uint32_t lanes[8], all = 0;
  _mm256_storeu_si256((__m256i *)lanes, sum);
  for (int i = 0; i < 8; i++) all += lanes[i];
  return all;
}

#include "simd_math.h"

#endif
