/* Words for whole numbers: four bytes of each of CX_LANES rows at once. What integer matrix products are made of.
 *
 * vi holds one 32-bit lane a row; shifts, and, or are C's own operators. A lane is mostly four neighbouring codes of
 * its row, the first in the low byte. Included behind a simd_<isa>.h by row_table.h; the few words that instruction
 * sets differ in stand here side by side. Knows no ops and no block layouts.
 */
#ifndef CX_SIMD_PANEL_H
#define CX_SIMD_PANEL_H

#include <string.h>

#include "base/common.h"

#if CX_LANES == 1
typedef uint32_t vi;
typedef int32_t vi_signed;
typedef float vi_float;
#define VI_SET(v, lane, value) ((v) = (value))
CX_INLINE vf vi_floats(vi v) { return (float)(int32_t)v; }
#else
typedef uint32_t vi CX_VECTOR(4 * CX_LANES);
typedef int32_t vi_signed CX_VECTOR(4 * CX_LANES);
typedef float vi_float CX_VECTOR(4 * CX_LANES);
#define VI_SET(v, lane, value) ((v)[lane] = (value))
/* Signed lanes to f32. */
CX_INLINE vf vi_floats(vi v) { return (vf)__builtin_convertvector((vi_signed)v, vi_float); }
#endif

CX_INLINE uint32_t panel_u32(const void *p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

/* The 32 bits at p of each row; rows stand `stride` bytes apart, here and below. */
CX_INLINE vi vi_words(const uint8_t *p, size_t stride) {
  vi v;
  CX_UNROLL for (size_t r = 0; r < CX_LANES; r++) VI_SET(v, r, panel_u32(p + r * stride));
  return v;
}

/* 16 bytes of each row: bytes 4i to 4i + 3 to out[i]. The wide registers turn blocks of four rows over. */
#if CX_LANES == 16
CX_INLINE __m512i panel_quarter(const uint8_t *p, size_t stride) { /* rows 0, 4, 8, 12 */
  __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 8 * stride)), 2);
  return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 12 * stride)), 3);
}
CX_INLINE void vi_interleave(const uint8_t *p, size_t stride, vi out[4]) {
  const __m512i a = panel_quarter(p, stride), b = panel_quarter(p + stride, stride);
  const __m512i c = panel_quarter(p + 2 * stride, stride), d = panel_quarter(p + 3 * stride, stride);
  const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
  out[0] = (vi)_mm512_unpacklo_epi64(ab, cd);
  out[1] = (vi)_mm512_unpackhi_epi64(ab, cd);
  out[2] = (vi)_mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = (vi)_mm512_unpackhi_epi64(ab_high, cd_high);
}
#elif CX_LANES == 8
CX_INLINE __m256i panel_half(const uint8_t *p, size_t stride) { /* rows 0, 4 */
  const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
  return _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
}
CX_INLINE void vi_interleave(const uint8_t *p, size_t stride, vi out[4]) {
  const __m256i a = panel_half(p, stride), b = panel_half(p + stride, stride);
  const __m256i c = panel_half(p + 2 * stride, stride), d = panel_half(p + 3 * stride, stride);
  const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b), cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = (vi)_mm256_unpacklo_epi64(ab, cd);
  out[1] = (vi)_mm256_unpackhi_epi64(ab, cd);
  out[2] = (vi)_mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = (vi)_mm256_unpackhi_epi64(ab_high, cd_high);
}
#else
CX_INLINE void vi_interleave(const uint8_t *p, size_t stride, vi out[4]) {
  CX_UNROLL for (size_t i = 0; i < 4; i++) out[i] = vi_words(p + 4 * i, stride);
}
#endif

/* The low nibbles of 16 bytes of each row, then their high nibbles: 32 codes. */
CX_INLINE void vi_interleave_nibbles(const uint8_t *p, size_t stride, vi out[8]) {
  vi pairs[4];
  vi_interleave(p, stride, pairs);
  CX_UNROLL for (int i = 0; i < 4; i++) {
    out[i] = pairs[i] & 0x0f0f0f0fu;
    out[i + 4] = pairs[i] >> 4 & 0x0f0f0f0fu;
  }
}

/* The low 16 bits of each lane, an f16, to f32. */
CX_INLINE vf vi_f16(vi v) {
#if CX_LANES == 16
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v));
#else
  uint32_t wide[CX_LANES];
  uint16_t halves[CX_LANES];
  memcpy(wide, &v, sizeof wide);
  for (int i = 0; i < CX_LANES; i++) halves[i] = (uint16_t)wide[i];
  return vf_load_f16(halves);
#endif
}

/* CX_LANES whole numbers in [-128, 127] to bytes. */
CX_INLINE void vf_store_i8(int8_t *p, vf v) {
#if CX_LANES == 16
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)));
#else
  float whole[CX_LANES];
  vf_store(whole, v);
  for (int i = 0; i < CX_LANES; i++) p[i] = (int8_t)whole[i];
#endif
}

/* In byte j, 16 where bit 4i + j of the lane is set. */
CX_INLINE vi vi_fifth_bits(vi bits, int i) {
  vi v = (bits >> 4 * i & 15u) << 4;
  v |= v << 7;
  v |= v << 14;
  return v & 0x10101010u;
}
/* Byte j of each lane, as a number without and with sign, to f32. */
CX_INLINE vf vi_byte(vi v, int j) { return vi_floats(v >> 8 * j & 255u); }
CX_INLINE vf vi_byte_i8(vi v, int j) { return vi_floats((vi)((vi_signed)(v << (24 - 8 * j)) >> 24)); }

/* 32 elements of CX_LANES rows as codes: codes[i] has elements 4i to 4i + 3 of each. What the two factors of a row are
 * depends on the type: see kernels/int8.h. */
struct panel {
  vi codes[8];
  vf factors[2];
};

/* --- the dot product. vi_dot adds, to each lane, four codes times the four signed bytes at x; vi_dots does so for n of
 * each side, and `most` bounds the codes' size, n and most constants. Bytes at x are in [-127, 127]. Codes up to
 * seven bits long are unsigned. Eight bits are in a row's own form, which vi_code8 makes of signed bytes: a code plus
 * CX_CODE8_OFFSET. */

#if defined(__AVX512VNNI__)

#define CX_CODE8_OFFSET 128
CX_INLINE vi vi_code8(vi v) { return v ^ 0x80808080u; }
CX_INLINE vi vi_dots(const vi *codes, const int8_t *x, size_t n, int most) {
  __m512i sum = _mm512_setzero_si512();
  (void)most;
  CX_UNROLL for (size_t i = 0; i < n; i++)
    sum = _mm512_dpbusd_epi32(sum, (__m512i)codes[i], _mm512_set1_epi32((int)panel_u32(x + 4 * i)));
  return (vi)sum;
}

#elif CX_LANES == 16 || defined(__SSSE3__)

/* Pairs of products in 16 bits, added up there as long as they cannot overflow: 2 * 127 * most each. Signed codes make
 * x change its sign instead. */
#if CX_LANES == 16
#define X86(word) _mm512_##word
#define X86_BITS(word) _mm512_##word##_si512
typedef __m512i panel_int;
#elif CX_LANES == 8
#define X86(word) _mm256_##word
#define X86_BITS(word) _mm256_##word##_si256
typedef __m256i panel_int;
#else
#define X86(word) _mm_##word
#define X86_BITS(word) _mm_##word##_si128
typedef __m128i panel_int;
#endif
#define CX_CODE8_OFFSET 0
CX_INLINE vi vi_code8(vi v) { return v; }
CX_INLINE panel_int panel_pairs(panel_int codes, panel_int x, int most) {
  if (most < 128) return X86(maddubs_epi16)(codes, x);
#if CX_LANES == 16
  const panel_int turned = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
#else
  const panel_int turned = X86(sign_epi8)(x, codes);
#endif
  return X86(maddubs_epi16)(X86(abs_epi8)(codes), turned);
}
CX_INLINE vi vi_dots(const vi *codes, const int8_t *x, size_t n, int most) {
  const panel_int ones = X86(set1_epi16)(1);
  const size_t fit = (size_t)(32767 / (2 * 127 * most)), step = fit < n ? fit : n;
  panel_int sum = X86_BITS(setzero)();
  CX_UNROLL for (size_t i = 0; i < n; i += step) {
    panel_int pairs = X86_BITS(setzero)();
    CX_UNROLL for (size_t j = i; j < (i + step < n ? i + step : n); j++)
      pairs = X86(add_epi16)(
          pairs, panel_pairs((panel_int)codes[j], X86(set1_epi32)((int)panel_u32(x + 4 * j)), most));
    sum = X86(add_epi32)(sum, X86(madd_epi16)(pairs, ones));
  }
  return (vi)sum;
}
#undef X86
#undef X86_BITS

#elif defined(__ARM_NEON)

#define CX_CODE8_OFFSET 0
CX_INLINE vi vi_code8(vi v) { return v; }
CX_INLINE vi vi_dots(const vi *codes, const int8_t *x, size_t n, int most) {
  int32x4_t sum = vdupq_n_s32(0);
  (void)most;
  CX_UNROLL for (size_t i = 0; i < n; i++) {
    const int8x16_t code = (int8x16_t)codes[i];
    const int8x16_t four = vreinterpretq_s8_u32(vdupq_n_u32(panel_u32(x + 4 * i)));
#if defined(__ARM_FEATURE_DOTPROD)
    sum = vdotq_s32(sum, code, four);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(code), vget_low_s8(four)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(code), vget_high_s8(four)));
    sum = vaddq_s32(sum, vpaddq_s32(low, high));
#endif
  }
  return (vi)sum;
}

#else

#define CX_CODE8_OFFSET 0
CX_INLINE vi vi_code8(vi v) { return v; }
CX_INLINE vi vi_dots(const vi *codes, const int8_t *x, size_t n, int most) {
  int32_t sum = 0;
  (void)most;
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < 4; j++) sum += (int8_t)(codes[i] >> 8 * j) * x[4 * i + j];
  return (vi)sum;
}

#endif
#endif
