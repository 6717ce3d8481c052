/* The one place that writes a struct cx_error.
 *
 * Knows nothing of what went wrong. vsnprintf bounds the text and ends it, so any message is safe to print.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int cx_fail(struct cx_error *error, int code, const char *format, ...) {
  if (error != NULL) {
    va_list arguments;
    error->code = code;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return code;
}
