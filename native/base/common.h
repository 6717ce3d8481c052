/* Compiler words: the only file that names compilers or uses their extensions. gcc and clang.
 *
 * Knows nothing of instruction sets, quant types or ops.
 */
#ifndef CX_COMMON_H
#define CX_COMMON_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__GNUC__)
#error "caldrix is built with gcc or clang"
#endif

/* What a kernel calls per vector: inlined at every optimisation level, so that vectors stay in registers. */
#define CX_INLINE static inline __attribute__((always_inline, unused))
#define CX_NOINLINE __attribute__((noinline))
#define CX_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define CX_VECTOR(bytes) __attribute__((vector_size(bytes)))
#define CX_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Stands before a loop of constant count whose body must become straight code (small arrays of vectors, kept in
 * registers). */
#if defined(__clang__)
#define CX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CX_UNROLL _Pragma("GCC unroll 64")
#endif

/* Makes the compiler hold a vector in a register, where it would else fold the load into each instruction that uses the
 * value and so load it several times. */
#if defined(__aarch64__)
#define CX_KEEP(vector) __asm__("" : "+w"(vector))
#elif defined(__AVX512F__)
#define CX_KEEP(vector) __asm__("" : "+v"(vector))
#else
#define CX_KEEP(vector) __asm__("" : "+x"(vector))
#endif

/* An array, from now on in memory: what is read from it is loaded. */
#define CX_IN_MEMORY(array) __asm__("" : "+m"(array))

/* Asks for the cache line at p ahead of its use. Any address is allowed. */
CX_INLINE void cx_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
/* The same, but only as near as the second-level cache: for what will be used some microseconds later. */
CX_INLINE void cx_prefetch_later(const void *p) { __builtin_prefetch(p, 0, 2); }

/* Stands in a loop that waits for memory another thread writes. */
CX_INLINE void cx_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
