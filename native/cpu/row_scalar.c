/* The row "scalar": plain C, for any processor. What the other rows are compared with, and what runs where none of them
 * can. */
#include "simd_scalar.h"

#define CX_ROW_NAME "scalar"
#define CX_ROW_SYMBOL cx_row_scalar
#include "row_table.h"
