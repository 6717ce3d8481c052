/* The vector words of simd_scalar.h, which says what each does, in SSE4.2: four lanes.
 *
 * For x86-64-v2. It has no fused multiply-add and no half-precision conversion: vf_fma rounds twice.
 */
#ifndef CX_SIMD_SSE_H
#define CX_SIMD_SSE_H

#include <nmmintrin.h>
#include <string.h>

#include "base/common.h"

#define CX_LANES 4

typedef __m128 vf;

CX_INLINE vf vf_load(const float *p) { return _mm_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf v) { _mm_storeu_ps(p, v); }
CX_INLINE vf vf_load_n(const float *p, size_t n) {
  float lanes[4] = {0};
  for (size_t i = 0; i < n; i++) lanes[i] = p[i];
  return _mm_loadu_ps(lanes);
}
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  float lanes[4];
  _mm_storeu_ps(lanes, v);
  for (size_t i = 0; i < n; i++) p[i] = lanes[i];
}

CX_INLINE vf vf_zero(void) { return _mm_setzero_ps(); }
CX_INLINE vf vf_set1(float v) { return _mm_set1_ps(v); }
CX_INLINE vf vf_add(vf a, vf b) { return _mm_add_ps(a, b); }
CX_INLINE vf vf_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
CX_INLINE vf vf_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
CX_INLINE vf vf_div(vf a, vf b) { return _mm_div_ps(a, b); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
CX_INLINE vf vf_max(vf a, vf b) { return _mm_max_ps(a, b); }
CX_INLINE vf vf_min(vf a, vf b) { return _mm_min_ps(a, b); }

CX_INLINE float vf_sum(vf v) {
  const __m128 two = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
CX_INLINE float vf_hmax(vf v) {
  const __m128 two = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* The first n 16-bit elements at p in the low half, zeros above. */
CX_INLINE __m128i sse_load_u16_n(const void *p, size_t n) {
  uint64_t bits = 0;
  memcpy(&bits, p, 2 * n);
  return _mm_cvtsi64_si128((int64_t)bits);
}

CX_INLINE vf sse_bf16(__m128i h) { return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), h)); }
CX_INLINE vf vf_load_bf16(const void *p) { return sse_bf16(_mm_loadl_epi64(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return sse_bf16(sse_load_u16_n(p, n)); }

/* With the fraction and exponent shifted into place, 2^112 moves the exponent to f32's bias and normalises f16's subnormals;
 * infinity and NaN then get f32's full exponent. */
CX_INLINE vf sse_f16(__m128i h) {
  const __m128i wide = _mm_cvtepu16_epi32(h);
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(wide, _mm_set1_epi32(0x8000)), 16);
  const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(wide, _mm_set1_epi32(0x7fff)), 13);
  const __m128 value = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112f));
  const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x0f7fffff));
  const __m128i top = _mm_or_si128(sign, _mm_and_si128(special, _mm_set1_epi32(0x7f800000)));
  return _mm_or_ps(value, _mm_castsi128_ps(top));
}
CX_INLINE vf vf_load_f16(const void *p) { return sse_f16(_mm_loadl_epi64(p)); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return sse_f16(sse_load_u16_n(p, n)); }

/* Four bf16 in the low half. */
CX_INLINE __m128i sse_to_bf16(vf v) {
  const __m128i bits = _mm_castps_si128(v);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
  const __m128 nan = _mm_cmpunord_ps(v, v);
  const __m128i top = _mm_srli_epi32(_mm_blendv_epi8(rounded, quiet, _mm_castps_si128(nan)), 16);
  return _mm_packus_epi32(top, top);
}
CX_INLINE void vf_store_bf16(void *p, vf v) { _mm_storel_epi64(p, sse_to_bf16(v)); }
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) {
  const uint64_t bits = (uint64_t)_mm_cvtsi128_si64(sse_to_bf16(v));
  memcpy(p, &bits, 2 * n);
}

CX_INLINE __m128i sse_load_4(const void *p) {
  int32_t bits;
  memcpy(&bits, p, sizeof bits);
  return _mm_cvtsi32_si128(bits);
}
CX_INLINE vf vf_from_i8(const void *p) { return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(sse_load_4(p))); }
CX_INLINE vf vf_from_u8(const void *p) { return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(sse_load_4(p))); }

CX_INLINE vf vf_round(vf v) { return _mm_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* In two halves: 2^n itself may not be a normal number. */
CX_INLINE vf vf_scale2(vf v, vf n) {
  const __m128i power = _mm_cvtps_epi32(n), half = _mm_srai_epi32(power, 1), bias = _mm_set1_epi32(127);
  const __m128i first = _mm_slli_epi32(_mm_add_epi32(half, bias), 23);
  const __m128i second = _mm_slli_epi32(_mm_add_epi32(_mm_sub_epi32(power, half), bias), 23);
  return _mm_mul_ps(_mm_mul_ps(v, _mm_castsi128_ps(first)), _mm_castsi128_ps(second));
}

#include "simd_math.h"

#endif
