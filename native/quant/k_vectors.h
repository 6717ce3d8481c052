/* What the vector decoders of the 256-element types share: the factors of a block as sixteen floats in vectors.
 *
 * Taken once a block: a kernel's inner loop is unrolled over the block, and the compiler keeps them. quants.h includes
 * this file where vector words are included (CX_LANES is defined).
 */
#ifndef CX_K_VECTORS_H
#define CX_K_VECTORS_H

/* The eight scales of a q4_k or q5_k block, then its eight minimums with their sign changed, as 16 floats: block points at
 * scale, minimum, scales[12]. Scale times code is exact (11 + 6 + 5 bits of 24), so scale * code - minimum may be one fused
 * multiply-add: it rounds once either way. */
CX_INLINE void cx_k_scales(const uint8_t *block, vf out[16 / CX_LANES]) {
  const uint32_t a = cx_read_u32(block + 4), b = cx_read_u32(block + 8), c = cx_read_u32(block + 12);
  const uint32_t bytes[4] = {
      a & 0x3f3f3f3f,
      (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
      b & 0x3f3f3f3f,
      (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030),
  };
#if CX_LANES == 16
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_setr_epi32((int)bytes[0], (int)bytes[1], (int)bytes[2], (int)bytes[3]));
  const vf factors = _mm512_mask_blend_ps(0xff00, vf_set1_f16(block), vf_sub(vf_zero(), vf_set1_f16(block + 2)));
  out[0] = vf_mul(factors, _mm512_cvtepi32_ps(wide));
#else
  CX_UNROLL for (int i = 0; i < 16 / CX_LANES; i++) {
    const vf factor = i * CX_LANES < 8 ? vf_set1_f16(block) : vf_sub(vf_zero(), vf_set1_f16(block + 2));
    out[i] = vf_mul(factor, vf_from_u8((const uint8_t *)bytes + CX_LANES * i));
  }
#endif
}

/* Float j, 0 to 15, of such an array in every lane. */
CX_INLINE vf cx_one_of_16(const vf floats[16 / CX_LANES], uint32_t j) {
  return vf_broadcast(floats[j / CX_LANES], j % CX_LANES);
}

#endif
