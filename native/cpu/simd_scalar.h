/* The vector words in plain C, one lane wide: the reference row, which every processor runs.
 *
 * The words are the same in every simd_<isa>.h; this file says what each does. vf holds CX_LANES floats. Loads and
 * stores need no alignment. A word that ends in _n handles the first n lanes, 0 <= n <= CX_LANES: a load gives zeros in
 * the others, and no memory past n elements is touched. Knows no ops and no block layouts.
 */
#ifndef CX_SIMD_SCALAR_H
#define CX_SIMD_SCALAR_H

#include <string.h>

#include "base/common.h"
#include "quant/numbers.h"

#define CX_LANES 1
/* A matrix product keeps CX_TILE_WEIGHTS rows of weights times CX_TILE_ROWS rows of activations in registers. */
#define CX_TILE_WEIGHTS 4
#define CX_TILE_ROWS 2

/* Straight code is for keeping vectors in registers; here it would only be long. */
#undef CX_UNROLL
#define CX_UNROLL

typedef float vf;

CX_INLINE vf vf_load(const void *p) {
  float value;
  memcpy(&value, p, sizeof value);
  return value;
}
CX_INLINE void vf_store(float *p, vf v) { *p = v; }
CX_INLINE vf vf_load_n(const void *p, size_t n) { return n ? vf_load(p) : 0.0f; }
CX_INLINE void vf_store_n(float *p, vf v, size_t n) {
  if (n) *p = v;
}

CX_INLINE vf vf_zero(void) { return 0.0f; }
CX_INLINE vf vf_set1(float v) { return v; }
/* One f16 in memory, or one lane, to every lane. */
CX_INLINE vf vf_set1_f16(const void *p) { return cx_read_f16(p); }
CX_INLINE vf vf_broadcast(vf v, uint32_t lane) { return (void)lane, v; }
CX_INLINE vf vf_add(vf a, vf b) { return a + b; }
CX_INLINE vf vf_sub(vf a, vf b) { return a - b; }
CX_INLINE vf vf_mul(vf a, vf b) { return a * b; }
CX_INLINE vf vf_div(vf a, vf b) { return a / b; }
/* a * b + c. One rounding where the row has fused multiply-add; two here and in x86-64-v2, which have none. */
CX_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* A NaN in b is kept by both on every row; a NaN in a need not be. */
CX_INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; }
CX_INLINE vf vf_min(vf a, vf b) { return a < b ? a : b; }

/* Sum and maximum of the lanes. The order of the sum is fixed: the upper half is added to the lower until one lane is
 * left. */
CX_INLINE float vf_sum(vf v) { return v; }
CX_INLINE float vf_hmax(vf v) { return v; }
/* Lane i is vf_sum(v[i]), to the bit, for CX_LANES vectors at once. */
CX_INLINE vf vf_sums(const vf v[CX_LANES]) { return v[0]; }

/* CX_LANES bf16 or f16 to f32, exactly. */
CX_INLINE vf vf_load_bf16(const void *p) { return cx_f32_of_bf16(cx_read_u16(p)); }
CX_INLINE vf vf_load_bf16_n(const void *p, size_t n) { return n ? vf_load_bf16(p) : 0.0f; }
CX_INLINE vf vf_load_f16(const void *p) { return cx_read_f16(p); }
CX_INLINE vf vf_load_f16_n(const void *p, size_t n) { return n ? vf_load_f16(p) : 0.0f; }

/* To bf16, to nearest, ties to even. A NaN stays one: rounding could carry its fraction into infinity, so it gets the
 * quiet bit. */
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

/* --- 32 bytes at a time: what block decoders unpack codes with. Bytes are unsigned unless a word says otherwise. */

#define CX_FLOATS_32 (32 / CX_LANES) /* vectors that hold 32 floats */

typedef struct {
  uint8_t byte[32];
} vb;

CX_INLINE vb vb_load(const void *p) {
  vb v;
  memcpy(&v, p, sizeof v);
  return v;
}
/* The low nibbles of the 16 bytes at p, then their high nibbles. */
CX_INLINE vb vb_nibbles(const void *p) {
  vb v;
  for (int i = 0; i < 16; i++) {
    const uint8_t pair = ((const uint8_t *)p)[i];
    v.byte[i] = pair & 15;
    v.byte[i + 16] = pair >> 4;
  }
  return v;
}
CX_INLINE vb vb_set1(uint8_t value) {
  vb v;
  memset(&v, value, sizeof v);
  return v;
}
CX_INLINE vb vb_and(vb a, vb b) {
  for (int i = 0; i < 32; i++) a.byte[i] &= b.byte[i];
  return a;
}
CX_INLINE vb vb_or(vb a, vb b) {
  for (int i = 0; i < 32; i++) a.byte[i] |= b.byte[i];
  return a;
}
CX_INLINE vb vb_sub(vb a, vb b) {
  for (int i = 0; i < 32; i++) a.byte[i] = (uint8_t)(a.byte[i] - b.byte[i]);
  return a;
}
/* Each byte shifted by 0 <= n <= 7, zeros coming in. */
CX_INLINE vb vb_shr(vb v, uint32_t n) {
  for (int i = 0; i < 32; i++) v.byte[i] = (uint8_t)(v.byte[i] >> n);
  return v;
}
CX_INLINE vb vb_shl(vb v, uint32_t n) {
  for (int i = 0; i < 32; i++) v.byte[i] = (uint8_t)(v.byte[i] << n);
  return v;
}
/* Byte i is all ones where bit i is set. */
CX_INLINE vb vb_from_bits(uint32_t bits) {
  vb v;
  for (int i = 0; i < 32; i++) v.byte[i] = bits >> i & 1 ? 0xff : 0;
  return v;
}
/* table[byte] for bytes below 16. */
CX_INLINE vb vb_lookup(const int8_t table[16], vb v) {
  for (int i = 0; i < 32; i++) v.byte[i] = (uint8_t)table[v.byte[i] & 15];
  return v;
}
/* 0 to 15, twice; and all ones but for byte 15 of either half. */
CX_INLINE vb vb_count_16(void) {
  vb v;
  for (int i = 0; i < 32; i++) v.byte[i] = (uint8_t)(i % 16);
  return v;
}
CX_INLINE vb vb_mask_15(void) {
  vb v;
  for (int i = 0; i < 32; i++) v.byte[i] = i % 16 == 15 ? 0 : 0xff;
  return v;
}
/* table[byte] for bytes below 16, where the table's halves are equal. */
CX_INLINE vb vb_pick_16(vb table, vb v) {
  for (int i = 0; i < 32; i++) v.byte[i] = table.byte[v.byte[i] & 15];
  return v;
}
/* 32 bf16 from their low and high bytes, in the order of quant/planes.h, as floats in order. */
CX_INLINE void vb_floats_bf16(vb low, vb high, vf out[CX_FLOATS_32]) {
  for (int s = 0; s < 32; s++)
    out[8 * (s % 16 / 4) + 4 * (s / 16) + s % 4] = cx_f32_of_bf16((uint16_t)(high.byte[s] << 8 | low.byte[s]));
}
/* Vector `index` of the bytes as floats, read as signed or as unsigned. */
CX_INLINE vf vb_floats_i8(vb v, int index) { return (float)(int8_t)v.byte[index]; }
CX_INLINE vf vb_floats_u8(vb v, int index) { return (float)v.byte[index]; }

/* --- sums of products of bytes, for the limits: CX_DOT_BYTES unsigned bytes times as many signed ones, added four by four to lanes of
 * 32 bits. Bytes below 128, so that no row saturates. */

#define CX_DOT_BYTES 4
typedef uint32_t vd;

CX_INLINE vd vd_zero(void) { return 0; }
CX_INLINE vd vd_load(const void *p) {
  vd v;
  memcpy(&v, p, sizeof v);
  return v;
}
CX_INLINE vd vd_dot(vd sum, vd a, vd b) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 0xff) * (uint32_t)(int8_t)(b >> i);
  return sum;
}
CX_INLINE uint32_t vd_sum(vd sum) { return sum; }

#include "simd_math.h"

#endif
