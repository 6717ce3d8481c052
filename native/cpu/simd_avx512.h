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

typedef __m512 vf;

CX_INLINE __mmask16 avx512_mask(size_t n) { return (__mmask16)((1u << n) - 1u); }

CX_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
CX_INLINE vf vf_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(avx512_mask(n), p); }
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

CX_INLINE vf avx512_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
CX_INLINE vf vf_load_bf16(const void *p) { return avx512_bf16(_mm256_loadu_si256(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return avx512_bf16(_mm256_maskz_loadu_epi16(avx512_mask(n), p)); }
CX_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(avx512_mask(n), p)); }

CX_INLINE __m256i avx512_to_bf16(vf v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}
CX_INLINE void vf_store_bf16(void *p, vf v) { _mm256_storeu_si256(p, avx512_to_bf16(v)); }
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) { _mm256_mask_storeu_epi16(p, avx512_mask(n), avx512_to_bf16(v)); }

CX_INLINE vf vf_from_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
CX_INLINE vf vf_from_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p))); }

CX_INLINE vf vf_round(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CX_INLINE vf vf_scale2(vf v, vf n) { return _mm512_scalef_ps(v, n); }

#include "simd_math.h"

#endif
