/* The row "aarch64": NEON as every 64-bit Arm processor has it. */
#include "simd_neon.h"

#define CX_ROW_NAME "aarch64"
#define CX_ROW_SYMBOL cx_row_neon
#include "row_table.h"
