/* CX_OP_SELECT_ROWS: the rows whose logits are wanted, one after the other. */
#ifndef CX_SELECT_H
#define CX_SELECT_H

static uint32_t select_rows_items(const void *op, const struct cx_run *run) {
  const struct cx_op_select_rows *o = op;
  return items_of_rows(run->n_out, rows_per_item(o->dim));
}

static void select_rows_run(const void *op, const struct cx_run *run, uint32_t begin, uint32_t end, void *scratch) {
  const struct cx_op_select_rows *o = op;
  const uint32_t per_item = rows_per_item(o->dim), last = rows_end(run->n_out, per_item, end);
  const float *x = cx_at(run, o->x);
  float *y = cx_at(run, o->y);
  (void)scratch;
  for (uint32_t i = begin * per_item; i < last; i++)
    memcpy(y + (size_t)i * o->y_stride, x + (size_t)run->out_rows[i] * o->x_stride, o->dim * sizeof *y);
}

#endif
