/* The features of the processor, read by cpuid and xgetbv on x86-64 and from the operating system on aarch64.
 *
 * A feature bit of the processor is not enough: wide registers are usable only where the operating system saves them.
 */
#include "features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
#endif

/* Bit numbers as in Intel's and AMD's manuals of cpuid. */
#define BIT(n) (1u << (n))

/* leaf 1, ecx */
#define V2_LEAF1                                                                                               \
  (BIT(0) /* sse3 */ | BIT(9) /* ssse3 */ | BIT(13) /* cx16 */ | BIT(19) /* sse4.1 */ | BIT(20) /* sse4.2 */ | \
   BIT(23) /* popcnt */)
#define V3_LEAF1 \
  (BIT(12) /* fma */ | BIT(22) /* movbe */ | BIT(27) /* osxsave */ | BIT(28) /* avx */ | BIT(29) /* f16c */)
/* leaf 0x80000001, ecx */
#define V2_EXTENDED BIT(0) /* lahf */
#define V3_EXTENDED BIT(5) /* lzcnt */
/* leaf 7, ebx */
#define V3_LEAF7 (BIT(3) /* bmi1 */ | BIT(5) /* avx2 */ | BIT(8) /* bmi2 */)
#define V4_LEAF7 (BIT(16) /* f */ | BIT(17) /* dq */ | BIT(28) /* cd */ | BIT(30) /* bw */ | BIT(31) /* vl */)
/* leaf 7, ecx */
#define VNNI_LEAF7 BIT(11)
/* xcr0 */
#define V3_STATE (BIT(1) /* xmm */ | BIT(2) /* ymm */)
#define V4_STATE (BIT(5) /* masks */ | BIT(6) /* upper half of zmm0 to 15 */ | BIT(7) /* zmm16 to 31 */)

static int has(uint32_t set, uint32_t wanted) { return (set & wanted) == wanted; }

uint32_t cx_features_of_cpuid(const struct cx_cpuid *cpuid) {
  if (!has(cpuid->leaf1_ecx, V2_LEAF1) || !has(cpuid->extended1_ecx, V2_EXTENDED)) return 0;
  uint32_t features = CX_FEATURE_X86_64_V2;
  if (!has(cpuid->leaf1_ecx, V3_LEAF1) || !has(cpuid->extended1_ecx, V3_EXTENDED)) return features;
  if (!has(cpuid->leaf7_ebx, V3_LEAF7) || !has(cpuid->xcr0, V3_STATE)) return features;
  features |= CX_FEATURE_X86_64_V3;
  if (!has(cpuid->leaf7_ebx, V4_LEAF7) || !has(cpuid->xcr0, V4_STATE)) return features;
  features |= CX_FEATURE_X86_64_V4;
  if (has(cpuid->leaf7_ecx, VNNI_LEAF7)) features |= CX_FEATURE_AVX512_VNNI;
  return features;
}

#if defined(__x86_64__)

static uint32_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

uint32_t cx_features(void) {
  struct cx_cpuid cpuid = {0};
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) cpuid.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) cpuid.leaf7_ebx = b, cpuid.leaf7_ecx = c;
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) cpuid.extended1_ecx = c;
  if (cpuid.leaf1_ecx & BIT(27)) cpuid.xcr0 = read_xcr0();
  return cx_features_of_cpuid(&cpuid);
}

#elif defined(__aarch64__)

uint32_t cx_features(void) {
  uint32_t features = CX_FEATURE_AARCH64;
#if defined(__linux__)
  if (getauxval(AT_HWCAP) & BIT(20)) features |= CX_FEATURE_DOTPROD; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
  int present = 0;
  size_t size = sizeof present;
  if (sysctlbyname("hw.optional.arm.FEAT_DotProd", &present, &size, NULL, 0) == 0 && present)
    features |= CX_FEATURE_DOTPROD;
#endif
  return features;
}

#else

uint32_t cx_features(void) { return 0; }

#endif
