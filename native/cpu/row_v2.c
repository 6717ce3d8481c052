/* The row "x86-64-v2": SSE4.2. For Intel Nehalem to Ivy Bridge, Atom and Celeron cores to this day, AMD Bulldozer and
 * Jaguar, and virtual machines that hide AVX. The next row needs AVX2, FMA and F16C, which these lack.
 */
#include "simd_sse.h"

#define CX_ROW_NAME "x86-64-v2"
#define CX_ROW_SYMBOL cx_row_v2
#include "row_table.h"
