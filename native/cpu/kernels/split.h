/* How ops that treat each row alike are cut into items: a few rows each, so that an item is worth handing to a thread.
 *
 * Which rows share an item changes no result; it is a matter of cost alone. Included by a row before the kernels.
 */
#ifndef CX_SPLIT_H
#define CX_SPLIT_H

/* Rows an item holds when a row is n_floats of simple work: about 4096 floats, a microsecond or so. */
CX_INLINE uint32_t rows_per_item(uint32_t n_floats) { return n_floats < 4096 ? 4096 / (n_floats ? n_floats : 1) : 1; }

CX_INLINE uint32_t items_of_rows(uint32_t n_rows, uint32_t per_item) { return n_rows / per_item + (n_rows % per_item != 0); }

/* The first row after items [.., end). */
CX_INLINE uint32_t rows_end(uint32_t n_rows, uint32_t per_item, uint32_t end) {
  return (uint64_t)end * per_item < n_rows ? end * per_item : n_rows;
}

#endif
