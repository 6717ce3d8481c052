/* What this processor and its operating system can run, as one set of bits a row can ask for.
 *
 * Knows no rows. Reading the processor and judging what was read are apart, so that a test can take any feature away.
 */
#ifndef CX_FEATURES_H
#define CX_FEATURES_H

#include <stdint.h>

/* The x86-64 levels are those of the psABI: a level counts only if every feature of it, and the register state it
 * needs, is there. */
enum cx_feature {
  CX_FEATURE_X86_64_V2 = 1 << 0,
  CX_FEATURE_X86_64_V3 = 1 << 1,
  CX_FEATURE_X86_64_V4 = 1 << 2,
  CX_FEATURE_AARCH64 = 1 << 3, /* NEON */
  CX_FEATURE_DOTPROD = 1 << 4,
  CX_FEATURE_AVX512_VNNI = 1 << 5 /* counts only with x86-64-v4 */
};

/* What an x86-64 processor reports: the registers named by leaf, zero where it has no such leaf. xcr0 is the state that
 * the operating system saves, zero where it says nothing (leaf 1 without OSXSAVE). */
struct cx_cpuid {
  uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, extended1_ecx;
  uint32_t xcr0;
};

/* The features that such a processor can run. */
uint32_t cx_features_of_cpuid(const struct cx_cpuid *cpuid);

/* The features of this machine: a set of enum cx_feature. */
uint32_t cx_features(void);

#endif
