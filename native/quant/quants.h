/* The list of weight types, and every type's file. What exists is this list: the table for Python, dispatch and tests expand it.
 *
 * X(name, GGUF type number, elements a block, bytes a block). To add a type: its file, its include and its line here. Numbers from
 * CX_OWN_TYPES on are ours.
 * A type's file gives `struct cx_<name>`, one block as it lies in a file (bytes only, so alignment 1), and the plain decoder
 * `cx_<name>_decode(src, n, dst)`: n elements, a multiple of the block, to f32. The plain decoder is the judge of every vector decoder.
 * Where vector words are included before this file (CX_LANES is defined) the type's file gives its vector loads too.
 */
#ifndef CX_QUANTS_H
#define CX_QUANTS_H

#include "numbers.h"

#define CX_SMALL_QUANTS(X) \
  X(f32, 0, 1, 4)          \
  X(f16, 1, 1, 2)          \
  X(bf16, 30, 1, 2)        \
  X(q8_0, 8, 32, 34)       \
  X(q4_0, 2, 32, 18)       \
  X(q4_1, 3, 32, 20)       \
  X(q5_0, 6, 32, 22)       \
  X(q5_1, 7, 32, 24)       \
  X(iq4_nl, 20, 32, 18)    \
  X(mxfp4, 39, 32, 17)

/* Blocks of 256 elements: their vector loads take the factors of a block, which are made once for it. */
#define CX_LARGE_QUANTS(X) \
  X(q2_k, 10, 256, 84)     \
  X(q3_k, 11, 256, 110)    \
  X(q4_k, 12, 256, 144)    \
  X(q5_k, 13, 256, 176)    \
  X(q6_k, 14, 256, 210)    \
  X(iq4_xs, 23, 256, 136)  \
  X(planes, 64, 256, 398)

#define CX_QUANTS(X) CX_SMALL_QUANTS(X) CX_LARGE_QUANTS(X)

/* Types whose integer codes are multiplied with int8 activations: X(name, factors, largest code, offset of a code), in
 * the sense of cpu/kernels/int8.h. Such a type's file gives `cx_<name>_panel(block, stride, out)` too: a block of each
 * of CX_LANES rows as panels (cpu/simd_panel.h). */
#define CX_INT8_QUANTS(X)             \
  X(q8_0, SCALE, 128, CX_CODE8_OFFSET) \
  X(q4_0, SCALE, 15, 8)               \
  X(q4_1, SCALE_MINIMUM, 15, 0)       \
  X(q5_0, SCALE, 31, 16)              \
  X(q5_1, SCALE_MINIMUM, 31, 0)       \
  X(q4_k, SCALE_MINIMUM, 15, 0)       \
  X(q5_k, SCALE_MINIMUM, 31, 0)       \
  X(q6_k, SCALES, 63, 32)

/* cx_type_q4_k and so on: the GGUF type numbers by name. */
#define CX_TYPE(name, id, elements, bytes) cx_type_##name = id,
enum cx_type { CX_QUANTS(CX_TYPE) };
#undef CX_TYPE

#ifdef CX_LANES
#include "k_vectors.h"
#endif

#include "bf16.h"
#include "f16.h"
#include "f32.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "planes.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"

#endif
