/* A plan image, checked once: what comes out of cx_plan_open is safe to run with the arenas it was checked against.
 *
 * Owns every check of sizes, alignment, types and references; knows nothing of lanes, kernels or threads (a lane checks by
 * itself that it has a kernel for every op). The image is copied first, so that it cannot change under the check.
 */
#ifndef CX_PLAN_H
#define CX_PLAN_H

#include "caldrix.h"

struct cx_plan {
  struct cx_plan_head head;
  uint8_t *ops; /* n_ops records of CX_OP_BYTES, 64-byte aligned; owned */
};

/* Refuses with CX_EINVAL and a line that names the op and the field. arenas[0] is not looked at. */
int cx_plan_open(const void *image, uint64_t image_bytes, const struct cx_arena *arenas, uint32_t n_arenas,
                 struct cx_plan *out, struct cx_error *error);
void cx_plan_close(struct cx_plan *plan);

/* "linear" for CX_OP_LINEAR; NULL for a code that is no op. */
const char *cx_op_name(uint32_t op);

static inline const void *cx_plan_op(const struct cx_plan *plan, uint32_t index) {
  return plan->ops + (size_t)index * CX_OP_BYTES;
}

#endif
