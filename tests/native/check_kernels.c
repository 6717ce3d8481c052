/* check_kernels [--list] [--seed N] [--row NAME] [CHECK...]: the decoders and every kernel but the linear ones (check_matmul.c) of every
 * row that this processor can run, against plain float64 code, with guard pages before and behind tensors. Prints a line a check; the
 * first failure ends it with status 1.
 *
 * A new check is a function in check.h and a line here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu/lane_cpu.h"

static const struct check {
  const char *name;
  enum cx_op_code op; /* skipped on a row that has no kernel for it; CX_OP_NONE is never skipped */
  void (*run)(const struct cx_row *row);
} checks[] = {
    {"decode", CX_OP_NONE, check_decode},
    {"embed", CX_OP_EMBED, check_embed},
    {"select_rows", CX_OP_SELECT_ROWS, check_select_rows},
    {"rms_norm", CX_OP_RMS_NORM, check_rms_norm},
    {"rope_angles", CX_OP_ROPE_ANGLES, check_rope_angles},
    {"rope_store", CX_OP_ROPE_STORE, check_rope_store},
    {"attention", CX_OP_ATTENTION, check_attention},
    {"quantize", CX_OP_QUANTIZE, check_quantize},
    {"linear_int8", CX_OP_LINEAR_INT8, check_linear_int8},
    {"gated_linear_int8", CX_OP_GATED_LINEAR_INT8, check_gated_linear_int8},
};
#define N_CHECKS (sizeof checks / sizeof checks[0])

static int is_wanted(const char *name, char **wanted, int n_wanted) {
  for (int i = 0; i < n_wanted; i++)
    if (strcmp(name, wanted[i]) == 0) return 1;
  return n_wanted == 0;
}

static void run_row(const struct cx_row *row, uint64_t seed, char **wanted, int n_wanted) {
  for (size_t i = 0; i < N_CHECKS; i++) {
    if (!is_wanted(checks[i].name, wanted, n_wanted)) continue;
    if (checks[i].op != CX_OP_NONE && row->kernels[checks[i].op].run == NULL) {
      printf("%s %s: no kernel\n", row->name, checks[i].name);
      continue;
    }
    begin_check(row->name, checks[i].name, seed);
    checks[i].run(row);
    printf("%s %s: %u cases ok\n", row->name, checks[i].name, n_cases());
  }
}

int main(int argc, char **argv) {
  uint64_t seed = 1;
  const char *only_row = NULL;
  int i = 1, n_rows = 0;
  for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
    if (strcmp(argv[i], "--list") == 0) {
      for (size_t c = 0; c < N_CHECKS; c++) puts(checks[c].name);
      return 0;
    }
    if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[++i], NULL, 10);
    else if (i + 1 < argc && strcmp(argv[i], "--row") == 0) only_row = argv[++i];
    else return fprintf(stderr, "usage: check_kernels [--list] [--seed N] [--row NAME] [CHECK...]\n"), 2;
  }
  for (int index = 0; index < cx_row_count(); index++) {
    const char *name = cx_row_name(index);
    if (only_row != NULL && strcmp(name, only_row) != 0) continue;
    if (!cx_row_usable(index)) {
      printf("%s: not on this processor\n", name);
      continue;
    }
    struct cx_error error;
    run_row(cx_row_find(name, &error), seed, argv + i, argc - i);
    n_rows++;
  }
  if (n_rows == 0) return fprintf(stderr, "check_kernels: no row to check\n"), 1;
  printf("seed %llu\n", (unsigned long long)seed);
  return 0;
}
