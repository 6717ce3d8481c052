/* CX_OP_EMBED: rows of a table of any weight type, decoded to f32. Needs weights.h, which has the row's vector decoders by type. A row's
 * bits are those of the plain decoder.
 */
#ifndef CX_EMBED_H
#define CX_EMBED_H

static uint32_t embed_items(const void *op, const struct cx_run *run) {
  const struct cx_op_embed *o = op;
  return items_of_rows(run->n_rows, rows_per_item(o->dim));
}

static void embed_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_embed *o = op;
  const struct weight_type *type = &weight_types[o->table.type];
  const size_t row_bytes = (size_t)o->dim / type->block_elements * type->block_bytes;
  const uint32_t per_item = rows_per_item(o->dim), last = rows_end(run->n_rows, per_item, end);
  const uint8_t *table = cx_at(run, o->table);
  float *y = cx_at(run, o->y);
  (void)scratch;
  for (uint32_t row = begin * per_item; row < last; row++)
    type->decode(table + run->tokens[row] * row_bytes, o->dim, y + (size_t)row * o->y_stride);
}

#endif
