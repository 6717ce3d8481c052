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

typedef float32x4_t vf;

CX_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
CX_INLINE void vf_store(float *p, vf v) { vst1q_f32(p, v); }
CX_INLINE vf vf_load_n(const float *p, size_t n) {
  float lanes[4] = {0};
  for (size_t i = 0; i < n; i++) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  float lanes[4];
  vst1q_f32(lanes, v);
  for (size_t i = 0; i < n; i++) p[i] = lanes[i];
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
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return vcvt_f32_f16(vreinterpret_f16_u16(neon_load_u16_n(p, n))); }

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

CX_INLINE vf vf_round(vf v) { return vrndnq_f32(v); }
/* In two halves: 2^n itself may not be a normal number. */
CX_INLINE vf vf_scale2(vf v, vf n) {
  const int32x4_t power = vcvtnq_s32_f32(n), half = vshrq_n_s32(power, 1), bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(power, half), bias), 23);
  return vmulq_f32(vmulq_f32(v, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

#include "simd_math.h"

#endif
