/* The instruction-set rows of this build: which there are, which this processor can run, and picking one.
 *
 * Knows nothing of plans. Adding a row: its file, its line in lane_cpu.c, its flags in tools/build_native.py.
 */
#ifndef CX_LANE_CPU_H
#define CX_LANE_CPU_H

#include "cpu/row.h"

/* The row of that name, or the best usable one for NULL. NULL with a filled error when there is none. */
const struct cx_row *cx_row_find(const char *name, struct cx_error *error);

#endif
