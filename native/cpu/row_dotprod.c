/* The row "aarch64-dotprod": Armv8.2 with the dot product. For Cortex-A55, A75 and later, Neoverse N1 and later, Apple
 * M1 and later. The kernels are those of the row "aarch64"; the integer dot product serves int8 activations, and the
 * compiler may use what else Armv8.2 brings.
 */
#include "simd_neon.h"

#define CX_ROW_NAME "aarch64-dotprod"
#define CX_ROW_SYMBOL cx_row_dotprod
#include "row_table.h"
