/* The body of a row: the decoders and kernels over the vector words included before it, and the table that the row
 * exports.
 *
 * A template. Parameters: CX_ROW_NAME, the row's name; CX_ROW_SYMBOL, its one external symbol. Included once, last, by
 * a row_<isa>.c. A new kernel is an include and a line here; an op without a line has no kernel on the CPU lane.
 */
#include <math.h>
#include <string.h>

#include "cpu/row.h"
#include "cpu/simd_panel.h"
#include "quant/quants.h"

/* clang-format off: kernels use what stands before them */
#include "kernels/split.h"
#include "kernels/weights.h"
#include "kernels/matmul.h"
#include "kernels/int8.h"
#include "kernels/embed.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/attention.h"
#include "kernels/select.h"
#include "kernels/limits.h"
/* clang-format on */

extern const struct cx_row CX_ROW_SYMBOL;

const struct cx_row CX_ROW_SYMBOL = {
    .name = CX_ROW_NAME,
    .kernels =
        {
            [CX_OP_EMBED] = {embed_items, embed_run, NULL},
            [CX_OP_ROPE_ANGLES] = {rope_angles_items, rope_angles_run, NULL},
            [CX_OP_RMS_NORM] = {rms_norm_items, rms_norm_run, NULL},
            [CX_OP_LINEAR] = {linear_items, linear_run, linear_scratch_bytes},
            [CX_OP_GATED_LINEAR] = {gated_linear_items, gated_linear_run, gated_linear_scratch_bytes},
            [CX_OP_ROPE_STORE] = {rope_store_items, rope_store_run, rope_store_scratch_bytes},
            [CX_OP_ATTENTION] = {attention_items, attention_run, NULL},
            [CX_OP_SELECT_ROWS] = {select_rows_items, select_rows_run, NULL},
            [CX_OP_QUANTIZE] = {quantize_items, quantize_run, NULL},
            [CX_OP_LINEAR_INT8] = {linear_int8_items, linear_int8_run, linear_int8_scratch_bytes},
            [CX_OP_GATED_LINEAR_INT8] = {gated_linear_int8_items, gated_linear_int8_run,
                                         gated_linear_int8_scratch_bytes},
        },
    .limits =
        {
            [CX_LIMIT_READ] = {read_limit_run, read_limit_work},
            [CX_LIMIT_FMA] = {fma_limit_run, fma_limit_work},
            [CX_LIMIT_INT8] = {int8_limit_run, int8_limit_work},
        },
    .decode = decode_functions,
};

#undef CX_ROW_NAME
#undef CX_ROW_SYMBOL
