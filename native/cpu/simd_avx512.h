/* The vector words of simd_scalar.h, which says what each does, in AVX-512 (F, BW, DQ, VL, CD): sixteen lanes.
 *
 * For x86-64-v4. Its mask registers make every _n word one instruction.
 */
#ifndef CX_SIMD_AVX512_H
#define CX_SIMD_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "base/common.h"

#define CX_LANES 16
/* A matrix product keeps CX_TILE_WEIGHTS rows of weights times CX_TILE_ROWS rows of activations in registers: 24 of 32
 * registers. */
#define CX_TILE_WEIGHTS 6
#define CX_TILE_ROWS 4

typedef __m512 vf;

CX_INLINE __mmask16 avx512_mask(size_t n) { return (__mmask16)((1u << n) - 1u); }

CX_INLINE vf vf_load(const void *p) { return _mm512_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
CX_INLINE vf vf_load_n(const void *p, size_t n) { return _mm512_maskz_loadu_ps(avx512_mask(n), p); }
CX_INLINE void vf_store_n(float *p, vf v, size_t n) { _mm512_mask_storeu_ps(p, avx512_mask(n), v); }

CX_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
CX_INLINE vf vf_set1(float v) { return _mm512_set1_ps(v); }
CX_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
CX_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
CX_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
CX_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
CX_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
CX_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }

CX_INLINE float vf_sum(vf v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
CX_INLINE float vf_hmax(vf v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
/* Halves the lanes of two vectors per step, as vf_sum does; their order is chosen so that the sums come out in place.
 */
CX_INLINE __m512 avx512_fold_8(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
CX_INLINE __m512 avx512_fold_4(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
CX_INLINE __m512 avx512_fold_2(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
CX_INLINE vf vf_sums(const vf v[CX_LANES]) {
  __m512 four[4];
  CX_UNROLL for (int i = 0; i < 4; i++)
    four[i] = avx512_fold_4(avx512_fold_8(v[i], v[i + 4]), avx512_fold_8(v[i + 8], v[i + 12]));
  const __m512 a = avx512_fold_2(four[0], four[1]), b = avx512_fold_2(four[2], four[3]);
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

CX_INLINE vf avx512_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
CX_INLINE vf vf_load_bf16(const void *p) { return avx512_bf16(_mm256_loadu_si256(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) {
  return avx512_bf16(_mm256_maskz_loadu_epi16(avx512_mask(n), p));
}
CX_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(avx512_mask(n), p));
}

CX_INLINE __m256i avx512_to_bf16(vf v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}
CX_INLINE void vf_store_bf16(void *p, vf v) { _mm256_storeu_si256(p, avx512_to_bf16(v)); }
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) {
  _mm256_mask_storeu_epi16(p, avx512_mask(n), avx512_to_bf16(v));
}

CX_INLINE vf vf_from_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
CX_INLINE vf vf_from_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p))); }

CX_INLINE vf vf_set1_f16(const void *p) {
  int16_t half;
  memcpy(&half, p, sizeof half);
  return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}
CX_INLINE vf vf_broadcast(vf v, uint32_t lane) { return _mm512_permutexvar_ps(_mm512_set1_epi32((int)lane), v); }

CX_INLINE vf vf_round(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CX_INLINE vf vf_scale2(vf v, vf n) { return _mm512_scalef_ps(v, n); }

/* --- 32 bytes at a time */

#define CX_FLOATS_32 (32 / CX_LANES)

#include "simd_bytes_256.h"

CX_INLINE __m128i avx512_sixteen(vb v, int index) {
  return index ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v);
}
CX_INLINE vf vb_floats_i8(vb v, int index) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(avx512_sixteen(v, index)));
}
CX_INLINE vf vb_floats_u8(vb v, int index) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(avx512_sixteen(v, index)));
}

/* One permutation of words widens, shifts and orders. */
CX_INLINE void vb_floats_bf16(vb low, vb high, vf out[2]) {
  const __m512i from = _mm512_setr_epi32(0 << 16, 1 << 16, 2 << 16, 3 << 16, 8 << 16, 9 << 16, 10 << 16, 11 << 16, 4 << 16,
                                         5 << 16, 6 << 16, 7 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
  const __m512i first = _mm512_castsi256_si512(_mm256_unpacklo_epi8(low, high));
  const __m512i second = _mm512_castsi256_si512(_mm256_unpackhi_epi8(low, high));
  out[0] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, from, first));
  out[1] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, from, second));
}

/* --- four-bit codes by table: no conversion, no arithmetic per element. For this row's half of the block decoders
 * only. */

/* The values that codes 0 to 15 have before scaling, in four-bit types without a table of their own. */
CX_INLINE vf avx512_iota(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
/* 16 bytes as integers; as the indices of a permutation, which looks at the low nibble alone. */
CX_INLINE __m512i avx512_wide(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
/* The high nibbles of sixteen bytes, less a small whole number. As the fraction of a float whose last place counts 1/16
 * they need neither shift nor conversion. */
CX_INLINE vf avx512_high_nibbles(__m512i wide, int less) {
  const __m512i bits = _mm512_ternarylogic_epi32(wide, _mm512_set1_epi32(0xf0), _mm512_set1_epi32(0x49000000), 0xea);
  return vf_sub(_mm512_castsi512_ps(bits), vf_set1(0x1p19f + (float)less));
}
/* table[low nibble] of 16 bytes, then table[high nibble]. */
CX_INLINE void avx512_lookup_nibbles(const void *p, vf table, vf out[2]) {
  const __m512i pairs = avx512_wide(p);
  out[0] = _mm512_permutexvar_ps(pairs, table);
  out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table);
}
/* The same with a fifth bit, as masks: it picks the table. */
CX_INLINE void avx512_lookup_nibbles_2(const void *p, __mmask16 low, __mmask16 high, vf below, vf above, vf out[2]) {
  const __m512i pairs = avx512_wide(p), upper = _mm512_srli_epi32(pairs, 4);
  out[0] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(pairs, below), low, pairs, above);
  out[1] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(upper, below), high, upper, above);
}

#define CX_DOT_BYTES 64
typedef __m512i vd;

CX_INLINE vd vd_zero(void) { return _mm512_setzero_si512(); }
CX_INLINE vd vd_load(const void *p) { return _mm512_loadu_si512(p); }
CX_INLINE vd vd_dot(vd sum, vd a, vd b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
#endif
}
CX_INLINE uint32_t vd_sum(vd sum) { return (uint32_t)_mm512_reduce_add_epi32(sum); }

#include "simd_math.h"

#endif
