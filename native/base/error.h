/* Filling a caller's struct cx_error: one line for a person, cut to fit. Knows nothing of what went wrong.
 *
 * Style of the text: lower case, names the thing, the value and what would be accepted; no full stop.
 */
#ifndef CX_ERROR_H
#define CX_ERROR_H

#include "caldrix.h"
#include "common.h"

/* Writes code and message where error is not NULL, and returns code, so that a failing call ends in one statement. */
int cx_fail(struct cx_error *error, int code, const char *format, ...) CX_PRINTF(3, 4);

#endif
