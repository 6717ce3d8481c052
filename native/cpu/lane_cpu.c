/* The table of instruction-set rows, best first, and the calls of caldrix.h that need a row.
 *
 * Runs on any processor of the architecture: this file is compiled for the baseline and calls into a row only once the
 * processor has said that it can run it.
 */
#include "lane_cpu.h"

#include <string.h>

#include "base/error.h"
#include "features.h"

/* Each from its row_<isa>.c. */
extern const struct cx_row cx_row_v4_vnni, cx_row_v4, cx_row_v3, cx_row_v2, cx_row_dotprod, cx_row_neon, cx_row_scalar;

/* Best first. needs is a set of enum cx_feature; a row that is not of this architecture is not in the build. */
static const struct {
  const struct cx_row *row;
  uint32_t needs;
} rows[] = {
#if defined(__x86_64__)
    {&cx_row_v4_vnni, CX_FEATURE_X86_64_V4 | CX_FEATURE_AVX512_VNNI},
    {&cx_row_v4, CX_FEATURE_X86_64_V4},
    {&cx_row_v3, CX_FEATURE_X86_64_V3},
    {&cx_row_v2, CX_FEATURE_X86_64_V2},
#elif defined(__aarch64__)
    {&cx_row_dotprod, CX_FEATURE_DOTPROD},
    {&cx_row_neon, CX_FEATURE_AARCH64},
#endif
    {&cx_row_scalar, 0},
};

#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

int cx_row_count(void) {
  return N_ROWS;
}

const char *cx_row_name(int index) {
  return index >= 0 && index < N_ROWS ? rows[index].row->name : NULL;
}

int cx_row_usable(int index) {
  return index >= 0 && index < N_ROWS && (rows[index].needs & ~cx_features()) == 0;
}

const struct cx_row *cx_row_find(const char *name, struct cx_error *error) {
  for (int i = 0; i < N_ROWS; i++) {
    if (name != NULL && strcmp(name, rows[i].row->name) != 0) continue;
    if (cx_row_usable(i)) return rows[i].row;
    if (name != NULL) {
      cx_fail(error, CX_EINVAL, "row %s: this processor has not all it needs", name);
      return NULL;
    }
  }
  cx_fail(error, CX_EINVAL, "row %.60s: not a row of this build", name); /* one is always usable, so a name was asked for */
  return NULL;
}

int cx_quant_decode_row(const char *row, uint32_t type, const void *src, uint64_t n_elements, float *dst) {
  const struct cx_row *found = cx_row_find(row, NULL);
  if (found == NULL) return CX_EINVAL;
  for (int i = 0; i < cx_quant_count(); i++) {
    const struct cx_quant_info *info = cx_quant_at(i);
    if (info->id != type) continue;
    if (n_elements % info->block_elements != 0) return CX_EINVAL;
    found->decode[i](src, n_elements, dst);
    return CX_OK;
  }
  return CX_EINVAL;
}
