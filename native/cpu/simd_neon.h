/* The vector words of simd_scalar.h, which says what each does, in NEON: four lanes.
 *
 * For aarch64, where NEON, fused multiply-add and the conversion of f16 are always there.
 */
#ifndef CX_SIMD_NEON_H
#define CX_SIMD_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "base/common.h"

#define CX_LANES 4
/* A matrix product keeps CX_TILE_WEIGHTS rows of weights times CX_TILE_ROWS rows of activations in registers: 24 of 32
 * registers. */
#define CX_TILE_WEIGHTS 6
#define CX_TILE_ROWS 4

typedef float32x4_t vf;

CX_INLINE vf vf_load(const void *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
CX_INLINE void vf_store(float *p, vf v) { vst1q_f32(p, v); }
CX_INLINE vf vf_load_n(const void *p, size_t n) {
  float lanes[4] = {0};
  memcpy(lanes, p, 4 * n);
  return vld1q_f32(lanes);
}
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  float lanes[4];
  vst1q_f32(lanes, v);
  memcpy(p, lanes, 4 * n);
}

CX_INLINE vf vf_zero(void) { return vdupq_n_f32(0.0f); }
CX_INLINE vf vf_set1(float v) { return vdupq_n_f32(v); }
CX_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
CX_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
CX_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
CX_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
CX_INLINE vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
CX_INLINE vf vf_min(vf a, vf b) { return vminq_f32(a, b); }

CX_INLINE float vf_sum(vf v) {
  const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
CX_INLINE float vf_hmax(vf v) { return vmaxvq_f32(v); }
CX_INLINE float32x4_t neon_fold_2(float32x4_t a, float32x4_t b) {
  return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}
CX_INLINE vf vf_sums(const vf v[CX_LANES]) { return vpaddq_f32(neon_fold_2(v[0], v[1]), neon_fold_2(v[2], v[3])); }

/* The first n 16-bit elements at p, zeros above. */
CX_INLINE uint16x4_t neon_load_u16_n(const void *p, size_t n) {
  uint16_t lanes[4] = {0};
  memcpy(lanes, p, 2 * n);
  return vld1_u16(lanes);
}
CX_INLINE uint16x4_t neon_load_u16(const void *p) { return vreinterpret_u16_u8(vld1_u8(p)); }

CX_INLINE vf neon_bf16(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
CX_INLINE vf vf_load_bf16(const void *p) { return neon_bf16(neon_load_u16(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return neon_bf16(neon_load_u16_n(p, n)); }
CX_INLINE vf vf_load_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(neon_load_u16(p))); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) {
  return vcvt_f32_f16(vreinterpret_f16_u16(neon_load_u16_n(p, n)));
}

CX_INLINE uint16x4_t neon_to_bf16(vf v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}
CX_INLINE void vf_store_bf16(void *p, vf v) { vst1_u8(p, vreinterpret_u8_u16(neon_to_bf16(v))); }
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) {
  uint16_t lanes[4];
  vst1_u16(lanes, neon_to_bf16(v));
  memcpy(p, lanes, 2 * n);
}

CX_INLINE uint8x8_t neon_load_4(const void *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  return vreinterpret_u8_u32(vdup_n_u32(bits));
}
CX_INLINE vf vf_from_i8(const void *p) {
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(neon_load_4(p))))));
}
CX_INLINE vf vf_from_u8(const void *p) { return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(neon_load_4(p))))); }

CX_INLINE vf vf_set1_f16(const void *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}
CX_INLINE vf vf_broadcast(vf v, uint32_t lane) { return vdupq_n_f32(v[lane & 3]); }

CX_INLINE vf vf_round(vf v) { return vrndnq_f32(v); }
/* In two halves: 2^n itself may not be a normal number. */
CX_INLINE vf vf_scale2(vf v, vf n) {
  const int32x4_t power = vcvtnq_s32_f32(n), half = vshrq_n_s32(power, 1), bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(power, half), bias), 23);
  return vmulq_f32(vmulq_f32(v, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

/* --- 32 bytes at a time */

#define CX_FLOATS_32 (32 / CX_LANES)

typedef struct {
  uint8x16_t low, high;
} vb;

CX_INLINE vb neon_vb(uint8x16_t low, uint8x16_t high) {
  const vb v = {low, high};
  return v;
}
CX_INLINE vb vb_load(const void *p) { return neon_vb(vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16)); }
CX_INLINE vb vb_nibbles(const void *p) {
  const uint8x16_t pairs = vld1q_u8(p);
  return neon_vb(vandq_u8(pairs, vdupq_n_u8(15)), vshrq_n_u8(pairs, 4));
}
CX_INLINE vb vb_set1(uint8_t value) { return neon_vb(vdupq_n_u8(value), vdupq_n_u8(value)); }
CX_INLINE vb vb_and(vb a, vb b) { return neon_vb(vandq_u8(a.low, b.low), vandq_u8(a.high, b.high)); }
CX_INLINE vb vb_or(vb a, vb b) { return neon_vb(vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)); }
CX_INLINE vb vb_sub(vb a, vb b) { return neon_vb(vsubq_u8(a.low, b.low), vsubq_u8(a.high, b.high)); }
CX_INLINE vb vb_shl(vb v, uint32_t n) {
  const int8x16_t count = vdupq_n_s8((int8_t)n);
  return neon_vb(vshlq_u8(v.low, count), vshlq_u8(v.high, count));
}
/* A negative count shifts right. */
CX_INLINE vb vb_shr(vb v, uint32_t n) {
  const int8x16_t count = vdupq_n_s8((int8_t) - (int)n);
  return neon_vb(vshlq_u8(v.low, count), vshlq_u8(v.high, count));
}
CX_INLINE vb vb_from_bits(uint32_t bits) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const uint8x16_t low = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));
  const uint8x16_t high = vcombine_u8(vdup_n_u8((uint8_t)(bits >> 16)), vdup_n_u8((uint8_t)(bits >> 24)));
  return neon_vb(vtstq_u8(low, bit), vtstq_u8(high, bit));
}
CX_INLINE vb vb_lookup(const int8_t table[16], vb v) {
  const uint8x16_t values = vreinterpretq_u8_s8(vld1q_s8(table));
  return neon_vb(vqtbl1q_u8(values, v.low), vqtbl1q_u8(values, v.high));
}
CX_INLINE vb vb_count_16(void) {
  static const uint8_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return neon_vb(vld1q_u8(count), vld1q_u8(count));
}
CX_INLINE vb vb_mask_15(void) {
  const uint8x16_t mask = vsetq_lane_u8(0, vdupq_n_u8(0xff), 15);
  return neon_vb(mask, mask);
}
CX_INLINE vb vb_pick_16(vb table, vb v) { return neon_vb(vqtbl1q_u8(table.low, v.low), vqtbl1q_u8(table.low, v.high)); }
CX_INLINE void vb_floats_bf16(vb low, vb high, vf out[8]) {
  const uint16x8_t zeros = vdupq_n_u16(0);
  CX_UNROLL for (int half = 0; half < 2; half++) {
    const uint8x16_t a = half ? low.high : low.low, b = half ? high.high : high.low;
    const uint16x8_t pairs[2] = {vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(a, b))};
    CX_UNROLL for (int i = 0; i < 2; i++) {
      out[4 * i + half] = vreinterpretq_f32_u16(vzip1q_u16(zeros, pairs[i]));
      out[4 * i + 2 + half] = vreinterpretq_f32_u16(vzip2q_u16(zeros, pairs[i]));
    }
  }
}
CX_INLINE vf vb_floats_i8(vb v, int index) {
  const int8x16_t half = vreinterpretq_s8_u8(index < 4 ? v.low : v.high);
  const int16x8_t wide = vmovl_s8(index % 4 < 2 ? vget_low_s8(half) : vget_high_s8(half));
  return vcvtq_f32_s32(vmovl_s16(index % 2 ? vget_high_s16(wide) : vget_low_s16(wide)));
}
CX_INLINE vf vb_floats_u8(vb v, int index) {
  const uint8x16_t half = index < 4 ? v.low : v.high;
  const uint16x8_t wide = vmovl_u8(index % 4 < 2 ? vget_low_u8(half) : vget_high_u8(half));
  return vcvtq_f32_u32(vmovl_u16(index % 2 ? vget_high_u16(wide) : vget_low_u16(wide)));
}

#define CX_DOT_BYTES 16
typedef int32x4_t vd;

CX_INLINE vd vd_zero(void) { return vdupq_n_s32(0); }
CX_INLINE vd vd_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
/* Both signed: the same for bytes below 128. */
CX_INLINE vd vd_dot(vd sum, vd a, vd b) {
  const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, x, y);
#else
  return vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(x), vget_low_s8(y)), x, y));
#endif
}
CX_INLINE uint32_t vd_sum(vd sum) { return (uint32_t)vaddvq_s32(sum); }

#include "simd_math.h"

#endif
