/* The vector words in plain C, one lane wide: the reference row, which every processor runs.
 *
 * The words are the same in every simd_<isa>.h; this file says what each does. vf holds CX_LANES floats. Loads and stores need no
 * alignment. A word that ends in _n handles the first n lanes, 0 <= n <= CX_LANES: a load gives zeros in the others, and no
 * memory past n elements is touched. Knows no ops and no block layouts.
 */
#ifndef CX_SIMD_SCALAR_H
#define CX_SIMD_SCALAR_H

#include <string.h>

#include "base/common.h"
#include "quant/numbers.h"

#define CX_LANES 1

typedef float vf;

CX_INLINE vf vf_load(const float *p) { return *p; }
CX_INLINE void vf_store(float *p, vf v) { *p = v; }
CX_INLINE vf vf_load_n(const float *p, size_t n) { return n ? *p : 0.0f; }
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  if (n) *p = v;
}

CX_INLINE vf vf_zero(void) { return 0.0f; }
CX_INLINE vf vf_set1(float v) { return v; }
CX_INLINE vf vf_add(vf a, vf b) { return a + b; }
CX_INLINE vf vf_sub(vf a, vf b) { return a - b; }
CX_INLINE vf vf_mul(vf a, vf b) { return a * b; }
CX_INLINE vf vf_div(vf a, vf b) { return a / b; }
/* a * b + c. One rounding where the row has fused multiply-add; two here and in x86-64-v2, which have none. */
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* A NaN in b is kept by both on every row; a NaN in a need not be. */
CX_INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; }
CX_INLINE vf vf_min(vf a, vf b) { return a < b ? a : b; }

/* Sum and maximum of the lanes. The order of the sum is fixed: the upper half is added to the lower until one lane is left. */
CX_INLINE float vf_sum(vf v) { return v; }
CX_INLINE float vf_hmax(vf v) { return v; }

/* CX_LANES bf16 or f16 to f32, exactly. */
CX_INLINE vf vf_load_bf16(const void *p) { return cx_f32_of_bf16(cx_read_u16(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return n ? vf_load_bf16(p) : 0.0f; }
CX_INLINE vf vf_load_f16(const void *p) { return cx_read_f16(p); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return n ? vf_load_f16(p) : 0.0f; }

/* To bf16, to nearest, ties to even. A NaN stays one: rounding could carry its fraction into infinity, so it gets the quiet bit. */
CX_INLINE void vf_store_bf16(void *p, vf v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  const uint32_t rounded = v != v ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  const uint16_t top = (uint16_t)(rounded >> 16);
  memcpy(p, &top, sizeof top);
}
CX_INLINE void vf_store_bf16_n(void *p, vf v, size_t n) {
  if (n) vf_store_bf16(p, v);
}

/* CX_LANES signed or unsigned bytes to f32. */
CX_INLINE vf vf_from_i8(const void *p) { return (float)*(const int8_t *)p; }
CX_INLINE vf vf_from_u8(const void *p) { return (float)*(const uint8_t *)p; }

/* For vf_exp. Adding 1.5 * 2^23 leaves no bits below the unit, so the sum rounds to nearest even (|v| < 2^22). */
CX_INLINE vf vf_round(vf v) { return v + 0x1.8p23f - 0x1.8p23f; }
CX_INLINE vf vf_scale2(vf v, vf n) {
  if (v != v) return v; /* n is a NaN too, which has no integer */
  const int32_t power = (int32_t)n, half = power / 2;
  return v * cx_f32_of_bits((uint32_t)(half + 127) << 23) * cx_f32_of_bits((uint32_t)(power - half + 127) << 23);
}

#include "simd_math.h"

#endif
