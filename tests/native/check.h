/* What the kernel checks share: tensors between guard pages, a seeded generator, running an op in every way that must not matter.
 *
 * A check builds a scene (the tensors of one op and the rows of one step), calls settle(), and compares the outputs with a plain
 * float64 version of its own. A failure prints the row, the check, the case and the seed, and ends the program.
 */
#ifndef CHECK_H
#define CHECK_H

#include "cpu/row.h"

#define MAX_TENSORS 24
#define MAX_STEP_ROWS 160

/* Where a tensor lies between its guard pages: its first byte behind the one, or its last byte before the other. */
enum placement { AT_START, AT_END };

struct tensor {
  uint8_t *base;
  size_t bytes, row_bytes, row_width; /* row_width < row_bytes leaves a gap that nothing may write */
  int written;                        /* the op may change it */
  uint8_t *map;
  size_t map_bytes;
};

struct scene {
  enum placement placement;
  struct tensor tensors[MAX_TENSORS]; /* tensor i is arena i; 0 is none */
  uint8_t *arenas[MAX_TENSORS];
  uint32_t n_tensors;
  uint32_t tokens[MAX_STEP_ROWS], positions[MAX_STEP_ROWS], slots[MAX_STEP_ROWS], out_rows[MAX_STEP_ROWS];
  struct cx_run run;
};

/* A reference inside an op's struct that advances by a row: where it is, and the floats between rows. */
struct row_ref {
  size_t at;
  uint32_t stride;
};

/* --- the current case, for the message of a failure --- */
void begin_check(const char *row, const char *check, uint64_t seed);
void begin_case(const char *format, ...);
unsigned n_cases(void);
_Noreturn void fail(const char *format, ...);

/* --- numbers --- */
uint64_t random_bits(void);
uint32_t random_below(uint32_t n);
double random_normal(void);
void fill_normal(float *x, size_t n, double spread);
void fill_bytes(void *p, size_t n);
float as_bf16(float x);             /* rounded to nearest even */
float bf16_value(const void *p);
/* Fails unless |got - want| <= allowed, both finite. */
void expect_near(const char *what, size_t index, double got, double want, double allowed);

/* --- scenes --- */
void scene_begin(struct scene *scene, enum placement placement, uint32_t n_rows, uint32_t n_out);
void scene_end(struct scene *scene);
/* A new tensor, every byte 0xff (a NaN in any float type). */
struct cx_ref add_bytes(struct scene *scene, uint32_t type, size_t bytes, int written);
/* f32 [n_rows, width], stride floats apart, without the gap of the last row. */
struct cx_ref add_rows(struct scene *scene, uint32_t n_rows, uint32_t width, uint32_t stride, int written);
struct cx_ref add_normal(struct scene *scene, uint32_t n_rows, uint32_t width, uint32_t stride, double spread, int written);
void *at(const struct scene *scene, struct cx_ref ref);
float *row_at(const struct scene *scene, struct cx_ref ref, uint32_t row, uint32_t stride);

/* Runs the op over the scene in one piece; then, from the same inputs, with its items apart and in any order, and with the step's
 * rows in steps of their own; all must give the same bytes. Inputs and gaps must be as they were. The outputs of the whole run stay.
 * op is one of ops.h, op_bytes long; refs are its n_refs references that advance by row (of x for output rows, none). */
void settle(struct scene *scene, const struct cx_row *row, enum cx_op_code code, const void *op, size_t op_bytes,
            const struct row_ref *refs, uint32_t n_refs);

/* Random blocks of a weight type whose values are ordinary numbers: finite, some thousands at most. */
void fill_blocks(const struct cx_quant_info *type, uint8_t *blocks, size_t bytes);

/* A stride above width that leaves a gap: a multiple of 16 floats. */
uint32_t stride_for(uint32_t width);

/* --- the checks --- */
void check_decode(const struct cx_row *row);
void check_embed(const struct cx_row *row);
void check_select_rows(const struct cx_row *row);
void check_rms_norm(const struct cx_row *row);
void check_rope_angles(const struct cx_row *row);
void check_rope_store(const struct cx_row *row);
void check_attention(const struct cx_row *row);
void check_quantize(const struct cx_row *row);
void check_linear_int8(const struct cx_row *row);
void check_gated_linear_int8(const struct cx_row *row);

#endif
