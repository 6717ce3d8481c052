/* What the CPU lane's executor and an instruction-set row share: a kernel is three functions in a table indexed by op code.
 *
 * A row is one translation unit (row_<isa>.c) that includes the vector words of its ISA, the quant decoders and the kernels, and
 * exports one const struct cx_row. Everything else in it is static, so no wide instruction leaks into another row.
 * A kernel knows its op and the run; it knows nothing of threads: any split of its items gives the same bits.
 */
#ifndef CX_ROW_H
#define CX_ROW_H

#include "caldrix.h"

/* One step as kernels see it. Arena bases are valid for every reference of a checked plan. */
struct cx_run {
  uint8_t *const *arenas;
  const uint32_t *tokens, *positions, *slots; /* n_rows each */
  const uint32_t *out_rows;                   /* n_out */
  uint32_t n_rows, n_out;
};

struct cx_kernel {
  /* How many independent items of work the op has in this run; each is worth at least a microsecond or so. */
  uint32_t (*items)(const void *op, const struct cx_run *run);
  /* Does items [begin, end). scratch is 64-byte aligned, this thread's own, and holds what scratch_bytes said. */
  void (*run)(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch);
  /* Scratch one thread needs for this op at up to max_rows rows; NULL for none. */
  uint64_t (*scratch_bytes)(const void *op, uint32_t max_rows);
};

/* One of the row's limits (enum cx_limit): a piece of work over `bytes` of data, which returns its checksum. */
struct cx_limit_kernel {
  uint64_t (*run)(const void *data, uint64_t bytes);
  uint64_t (*work)(uint64_t bytes); /* bytes read or operations done by run */
};

struct cx_row {
  const char *name;
  struct cx_kernel kernels[CX_OP_COUNT]; /* an absent kernel has run == NULL */
  struct cx_limit_kernel limits[CX_LIMIT_COUNT];
  /* decode[i] belongs to cx_quant_at(i): n_elements values to f32 by this row's vector decoder */
  void (*const *decode)(const void *src, uint64_t n_elements, float *dst);
};

static inline uint32_t cx_run_rows(const struct cx_op_head *head, const struct cx_run *run) {
  return head->rows == CX_ROWS_OUTPUT ? run->n_out : run->n_rows;
}

static inline void *cx_at(const struct cx_run *run, struct cx_ref ref) {
  return run->arenas[ref.arena] + ref.offset;
}

#endif
