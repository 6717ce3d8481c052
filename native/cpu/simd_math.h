/* The vector words that are written once, in the words of an instruction set: each simd_<isa>.h includes this file at
 * its end.
 *
 * Needs from it, beyond the arithmetic: vf_round (to nearest even) and vf_scale2(v, n) = v * 2^n for whole n, rounded
 * once, also where the result is subnormal or overflows.
 */
#ifndef CX_SIMD_MATH_H
#define CX_SIMD_MATH_H

/* v, from now on in a register. */
CX_INLINE vf vf_keep(vf v) {
  CX_KEEP(v);
  return v;
}

/* e^v within about 1 ulp over the whole range: subnormal results are kept, exp(-inf) = 0, exp(inf) = inf, NaN stays
 * NaN. v = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), where p is the minimax fit of degree 5 of (e^r - 1
 * - r) / r^2 (iterated least squares in f64, weighted for the relative error of e^r, which is 5e-11). ln 2 is split so
 * that n times the upper part is exact, with or without fused multiply-add. */
CX_INLINE vf vf_exp(vf v) {
  /* Past these bounds the result is inf or 0 anyway; a NaN passes both because it stands second. */
  v = vf_max(vf_set1(-104.0f), v);
  v = vf_min(vf_set1(89.0f), v);
  const vf n = vf_round(vf_mul(v, vf_set1(0x1.715476p+0f)));
  vf r = vf_fma(n, vf_set1(-0x1.63p-1f), v);
  r = vf_fma(n, vf_set1(0x1.bd0106p-13f), r);
  vf p = vf_set1(0x1.9f085ap-13f);
  p = vf_fma(p, r, vf_set1(0x1.6d8d52p-10f));
  p = vf_fma(p, r, vf_set1(0x1.111272p-7f));
  p = vf_fma(p, r, vf_set1(0x1.55548ep-5f));
  p = vf_fma(p, r, vf_set1(0x1.555554p-3f));
  p = vf_fma(p, r, vf_set1(0.5f));
  p = vf_fma(p, vf_mul(r, r), r);
  return vf_scale2(vf_add(p, vf_set1(1.0f)), n);
}

#endif
