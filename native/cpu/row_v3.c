/* The row "x86-64-v3": AVX2, FMA, F16C. For Intel Haswell (2013) and later, the hybrid cores from Alder Lake on among
 * them, and AMD Zen to Zen 3. Eight lanes and fused multiply-add: several times the row below.
 */
#include "simd_avx2.h"

#define CX_ROW_NAME "x86-64-v3"
#define CX_ROW_SYMBOL cx_row_v3
#include "row_table.h"
