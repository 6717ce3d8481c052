/* The list of quants.h as a table, and the plain decoders by type number: the quant half of caldrix.h.
 *
 * Knows nothing of instruction-set rows; their vector decoders are reached through cx_quant_decode_row elsewhere.
 */
#include "quants.h"

#include "caldrix.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "block layouts and f32 tensors are read as little-endian"
#endif

#define CHECK_BYTES(name, id, elements, bytes) \
  _Static_assert(sizeof(struct cx_##name) == (bytes), "a block's struct and its bytes in the list differ");
CX_QUANTS(CHECK_BYTES)
#undef CHECK_BYTES

#define INFO(name, id, elements, bytes) {#name, id, elements, bytes},
static const struct cx_quant_info infos[] = {CX_QUANTS(INFO)};
#undef INFO

#define DECODE(name, id, elements, bytes) cx_##name##_decode,
static void (*const decoders[])(const void *src, uint64_t n, float *dst) = {CX_QUANTS(DECODE)};
#undef DECODE

int cx_quant_count(void) { return (int)(sizeof infos / sizeof infos[0]); }

const struct cx_quant_info *cx_quant_at(int index) {
  return index >= 0 && index < cx_quant_count() ? &infos[index] : NULL;
}

const struct cx_quant_info *cx_quant_find(uint32_t id) {
  for (int i = 0; i < cx_quant_count(); i++)
    if (infos[i].id == id) return &infos[i];
  return NULL;
}

int cx_quant_takes_int8(uint32_t id) {
#define TAKES(name, factors, most, offset) || id == cx_type_##name
  return 0 CX_INT8_QUANTS(TAKES);
#undef TAKES
}

int cx_quant_decode(uint32_t type, const void *src, uint64_t n_elements, float *dst) {
  const struct cx_quant_info *info = cx_quant_find(type);
  if (info == NULL || n_elements % info->block_elements != 0) return CX_EINVAL;
  decoders[info - infos](src, n_elements, dst);
  return CX_OK;
}
