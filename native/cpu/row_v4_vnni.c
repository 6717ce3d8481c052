/* The row "x86-64-v4-vnni": that of row_v4.c with AVX-512's dot product of bytes. For Intel servers from Cascade Lake on,
 * Ice Lake and Rocket Lake clients, AMD Zen 4 and 5. Only products with int8 activations differ from the row below,
 * and those in speed alone.
 */
#include "simd_avx512.h"

#define CX_ROW_NAME "x86-64-v4-vnni"
#define CX_ROW_SYMBOL cx_row_v4_vnni
#include "row_table.h"
