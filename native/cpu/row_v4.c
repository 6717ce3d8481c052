/* The row "x86-64-v4": AVX-512 F, BW, DQ, VL, CD. For Intel servers from Skylake-X on, Ice Lake and Rocket Lake
 * clients, AMD Zen 4 and 5. Sixteen lanes in 32 registers, and a permutation of sixteen floats that decodes four-bit
 * codes by table.
 */
#include "simd_avx512.h"

#define CX_ROW_NAME "x86-64-v4"
#define CX_ROW_SYMBOL cx_row_v4
#include "row_table.h"
