/* Number formats that block layouts are made of: f16, bf16, little-endian words, the 4-bit lookup values.
 *
 * Everything is read byte by byte or by memcpy, because a tensor of a mapped file may start at any byte. Every conversion is exact.
 * Knows no block layout; the host is little-endian (quants.c refuses to compile elsewhere).
 */
#ifndef CX_NUMBERS_H
#define CX_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline uint16_t cx_read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline uint32_t cx_read_u32(const uint8_t *p) { return cx_read_u16(p) | (uint32_t)cx_read_u16(p + 2) << 16; }

static inline float cx_f32_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A NaN keeps its sign and payload and becomes quiet, as the hardware conversion does. */
static inline float cx_f32_of_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return cx_f32_of_bits(sign | 0x7f800000 | (fraction ? 0x400000 : 0) | fraction << 13);
  if (exponent != 0) return cx_f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = (float)fraction * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

static inline float cx_read_f16(const uint8_t *p) { return cx_f32_of_f16(cx_read_u16(p)); }

static inline float cx_f32_of_bf16(uint16_t top) { return cx_f32_of_bits((uint32_t)top << 16); }

/* What the 4-bit codes of iq4_nl and iq4_xs stand for, before the scale. */
static const int8_t cx_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* What the 4-bit codes of mxfp4 stand for, doubled so that they are whole. */
static const int8_t cx_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Scale (minimum == 0) or minimum (minimum == 1) of sub-block j, 0 to 7, of q4_k and q5_k: 6 bits each in 12 bytes.
 * The low four sub-blocks use the low 6 bits of a byte; the high four take a nibble and those bytes' top 2 bits. */
static inline uint32_t cx_k_scale(const uint8_t scales[12], uint32_t j, uint32_t minimum) {
  const uint8_t *own = scales + 4 * minimum;
  if (j < 4) return own[j] & 63;
  return (scales[j + 4] >> 4 * minimum & 15u) | (uint32_t)(own[j - 4] >> 6) << 4;
}

#endif
