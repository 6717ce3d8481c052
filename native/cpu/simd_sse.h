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
/* A matrix product keeps CX_TILE_WEIGHTS rows of weights times CX_TILE_ROWS rows of activations in registers: 8 of 16,
 * since each product needs one of its own too. */
#define CX_TILE_WEIGHTS 4
#define CX_TILE_ROWS 2

typedef __m128 vf;

CX_INLINE vf vf_load(const void *p) { return _mm_loadu_ps(p); }
CX_INLINE void vf_store(float *p, vf v) { _mm_storeu_ps(p, v); }
CX_INLINE vf vf_load_n(const void *p, size_t n) {
  float lanes[4] = {0};
  memcpy(lanes, p, 4 * n);
  return _mm_loadu_ps(lanes);
}
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  float lanes[4];
  _mm_storeu_ps(lanes, v);
  memcpy(p, lanes, 4 * n);
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
CX_INLINE vf vf_sums(const vf v[CX_LANES]) {
  const __m128 a = _mm_add_ps(_mm_movelh_ps(v[0], v[1]), _mm_movehl_ps(v[1], v[0]));
  const __m128 b = _mm_add_ps(_mm_movelh_ps(v[2], v[3]), _mm_movehl_ps(v[3], v[2]));
  return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd));
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

/* With the fraction and exponent shifted into place, 2^112 moves the exponent to f32's bias and normalises f16's
 * subnormals; infinity and NaN then get f32's full exponent. */
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

CX_INLINE vf vf_set1_f16(const void *p) {
  const vf one = sse_f16(sse_load_u16_n(p, 1));
  return _mm_shuffle_ps(one, one, 0);
}
CX_INLINE vf vf_broadcast(vf v, uint32_t lane) { return _mm_set1_ps(v[lane & 3]); }

CX_INLINE vf vf_round(vf v) { return _mm_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* In two halves: 2^n itself may not be a normal number. */
CX_INLINE vf vf_scale2(vf v, vf n) {
  const __m128i power = _mm_cvtps_epi32(n), half = _mm_srai_epi32(power, 1), bias = _mm_set1_epi32(127);
  const __m128i first = _mm_slli_epi32(_mm_add_epi32(half, bias), 23);
  const __m128i second = _mm_slli_epi32(_mm_add_epi32(_mm_sub_epi32(power, half), bias), 23);
  return _mm_mul_ps(_mm_mul_ps(v, _mm_castsi128_ps(first)), _mm_castsi128_ps(second));
}

/* --- 32 bytes at a time */

#define CX_FLOATS_32 (32 / CX_LANES)

typedef struct {
  __m128i low, high;
} vb;

CX_INLINE vb sse_vb(__m128i low, __m128i high) {
  const vb v = {low, high};
  return v;
}
CX_INLINE vb vb_load(const void *p) { return sse_vb(_mm_loadu_si128(p), _mm_loadu_si128((const __m128i *)p + 1)); }
CX_INLINE vb vb_nibbles(const void *p) {
  const __m128i pairs = _mm_loadu_si128(p), mask = _mm_set1_epi8(15);
  return sse_vb(_mm_and_si128(pairs, mask), _mm_and_si128(_mm_srli_epi16(pairs, 4), mask));
}
CX_INLINE vb vb_set1(uint8_t value) { return sse_vb(_mm_set1_epi8((char)value), _mm_set1_epi8((char)value)); }
CX_INLINE vb vb_and(vb a, vb b) { return sse_vb(_mm_and_si128(a.low, b.low), _mm_and_si128(a.high, b.high)); }
CX_INLINE vb vb_or(vb a, vb b) { return sse_vb(_mm_or_si128(a.low, b.low), _mm_or_si128(a.high, b.high)); }
CX_INLINE vb vb_sub(vb a, vb b) { return sse_vb(_mm_sub_epi8(a.low, b.low), _mm_sub_epi8(a.high, b.high)); }
/* There are no byte shifts: words are shifted and the bits that crossed over are cleared. */
CX_INLINE vb vb_shr(vb v, uint32_t n) {
  const vb words = sse_vb(_mm_srli_epi16(v.low, (int)n), _mm_srli_epi16(v.high, (int)n));
  return vb_and(words, vb_set1((uint8_t)(0xff >> n)));
}
CX_INLINE vb vb_shl(vb v, uint32_t n) {
  const vb words = sse_vb(_mm_slli_epi16(v.low, (int)n), _mm_slli_epi16(v.high, (int)n));
  return vb_and(words, vb_set1((uint8_t)(0xff << n)));
}
CX_INLINE vb vb_from_bits(uint32_t bits) {
  const __m128i all = _mm_cvtsi32_si128((int)bits), bit = _mm_set1_epi64x((int64_t)0x8040201008040201);
  const __m128i low = _mm_shuffle_epi8(all, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m128i high = _mm_shuffle_epi8(all, _mm_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  return sse_vb(_mm_cmpeq_epi8(_mm_and_si128(low, bit), bit), _mm_cmpeq_epi8(_mm_and_si128(high, bit), bit));
}
CX_INLINE vb vb_lookup(const int8_t table[16], vb v) {
  const __m128i values = _mm_loadu_si128((const __m128i *)table);
  return sse_vb(_mm_shuffle_epi8(values, v.low), _mm_shuffle_epi8(values, v.high));
}
/* The four bytes of vector `index` in the low lanes. */
CX_INLINE vb vb_count_16(void) {
  const __m128i count = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return sse_vb(count, count);
}
CX_INLINE vb vb_mask_15(void) {
  const __m128i mask = _mm_set_epi64x(0x00ffffffffffffff, -1);
  return sse_vb(mask, mask);
}
CX_INLINE vb vb_pick_16(vb table, vb v) {
  return sse_vb(_mm_shuffle_epi8(table.low, v.low), _mm_shuffle_epi8(table.low, v.high));
}
CX_INLINE void vb_floats_bf16(vb low, vb high, vf out[8]) {
  const __m128i zeros = _mm_setzero_si128();
  CX_UNROLL for (int half = 0; half < 2; half++) {
    const __m128i a = half ? low.high : low.low, b = half ? high.high : high.low;
    const __m128i pairs[2] = {_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)};
    CX_UNROLL for (int i = 0; i < 2; i++) {
      out[4 * i + half] = _mm_castsi128_ps(_mm_unpacklo_epi16(zeros, pairs[i]));
      out[4 * i + 2 + half] = _mm_castsi128_ps(_mm_unpackhi_epi16(zeros, pairs[i]));
    }
  }
}
CX_INLINE __m128i sse_four(vb v, int index) {
  const __m128i half = index < 4 ? v.low : v.high;
  switch (index % 4) {
    case 0: return half;
    case 1: return _mm_srli_si128(half, 4);
    case 2: return _mm_srli_si128(half, 8);
    default: return _mm_srli_si128(half, 12);
  }
}
CX_INLINE vf vb_floats_i8(vb v, int index) { return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(sse_four(v, index))); }
CX_INLINE vf vb_floats_u8(vb v, int index) { return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(sse_four(v, index))); }

#define CX_DOT_BYTES 16
typedef __m128i vd;

CX_INLINE vd vd_zero(void) { return _mm_setzero_si128(); }
CX_INLINE vd vd_load(const void *p) { return _mm_loadu_si128(p); }
CX_INLINE vd vd_dot(vd sum, vd a, vd b) {
  return _mm_add_epi32(sum, _mm_madd_epi16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1)));
}
CX_INLINE uint32_t vd_sum(vd sum) {
  uint32_t lanes[4], all = 0;
  _mm_storeu_si128((__m128i *)lanes, sum);
  for (int i = 0; i < 4; i++) all += lanes[i];
  return all;
}

#include "simd_math.h"

#endif
