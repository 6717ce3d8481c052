/* Op codes and their argument structs: one text for the host, for cffi and for every GPU compiler.
 *
 * A plan is a header and an array of records of CX_OP_BYTES bytes each. A record starts with struct cx_op_head; the op
 * code says which struct below fills the rest. Records hold byte offsets into arenas, never pointers, so a plan has the
 * same bytes on every lane. plan/plan.c checks every record once, before any run; kernels check nothing.
 *
 * Rules: plain data only, fixed-width types only, every struct at most CX_OP_BYTES long and free of implicit padding.
 * Keep caldrix/compile/plan.py in step: it packs these structs through cffi and reads the enum names from here.
 *
 * Shapes are row-major. R is the number of rows an op runs over: every row of the step, or its output rows (head.rows).
 */
#ifndef CX_OPS_H
#define CX_OPS_H

#define CX_PLAN_MAGIC 0x4e4c5058u /* "XPLN" */
#define CX_PLAN_VERSION 1
#define CX_OP_BYTES 256
#define CX_LINEAR_PARTS 3
#define CX_NO_LAYER 0xffffffffu

/* Arena ids. 0 marks an absent reference; weight files follow from CX_ARENA_FILES in the order the plan names them. */
enum cx_arena_id {
  CX_ARENA_NONE = 0,
  CX_ARENA_ACTIVATIONS = 1, /* scratch tensors of one step; f32; offsets and row strides are multiples of 64 bytes */
  CX_ARENA_KV = 2,          /* keys and values of every slot */
  CX_ARENA_WEIGHTS = 3,     /* weights caldrix made: constants, norms as f32, converted or repacked tensors */
  CX_ARENA_FILES = 4        /* the first mapped weight file; its tensors may start at any byte */
};

enum cx_op_code {
  CX_OP_NONE = 0,
  CX_OP_EMBED = 1,
  CX_OP_ROPE_ANGLES = 2,
  CX_OP_RMS_NORM = 3,
  CX_OP_LINEAR = 4,
  CX_OP_GATED_LINEAR = 5,
  CX_OP_ROPE_STORE = 6,
  CX_OP_ATTENTION = 7,
  CX_OP_SELECT_ROWS = 8,
  CX_OP_QUANTIZE = 9,
  CX_OP_LINEAR_INT8 = 10,
  CX_OP_GATED_LINEAR_INT8 = 11,
  CX_OP_COUNT = 12
};

enum cx_rows { CX_ROWS_STEP = 0, CX_ROWS_OUTPUT = 1 };
enum cx_rope_style { CX_ROPE_HALF = 0, CX_ROPE_ADJACENT = 1 }; /* pairs (i, i+d/2), or (2i, 2i+1) */
enum cx_activation { CX_ACT_SILU = 0 };

/* Where a tensor starts. type is a quant type id (quant/quants.h); f32 for everything in the activation arena. */
struct cx_ref {
  uint32_t arena;
  uint32_t type;
  uint64_t offset;
};

struct cx_op_head {
  uint16_t op;    /* enum cx_op_code */
  uint16_t rows;  /* enum cx_rows */
  uint32_t layer; /* for people: the layer this op belongs to, or CX_NO_LAYER */
};

/* y[R, dim] = table[token, :] decoded to f32 */
struct cx_op_embed {
  struct cx_op_head head;
  uint32_t dim, vocab;
  uint32_t y_stride; /* floats between rows of y, here and below */
  uint32_t reserved;
  struct cx_ref table; /* [vocab, dim] */
  struct cx_ref y;
};

/* angles[R, 2, half]: cos then sin of position * inv_freq, times scale. One op a step, read by every layer.
 * The product is taken in f32, the cosine and sine in f64, then rounded to f32. */
struct cx_op_rope_angles {
  struct cx_op_head head;
  uint32_t half;     /* half the rotated dimensions of a head */
  uint32_t y_stride;
  float scale;       /* 1, or yarn's attention factor */
  uint32_t reserved;
  struct cx_ref inv_freq; /* f32[half] */
  struct cx_ref y;
};

/* y[R, dim] = x / sqrt(mean(x^2) + eps) * weight */
struct cx_op_rms_norm {
  struct cx_op_head head;
  uint32_t dim;
  float eps;
  uint32_t x_stride, y_stride;
  struct cx_ref x, weight, y; /* weight f32[dim] */
};

/* One of up to three weights that share an input: y[R, n] = x[R, k] . weight[n, k]^T + bias */
struct cx_linear_part {
  struct cx_ref weight; /* [n, k], any type of quants.h; rows follow each other without padding */
  struct cx_ref bias;   /* f32[n], or absent */
  struct cx_ref y;
  uint32_t n, y_stride;
};

/* The parts above. With a residual (one part only) y = residual + (x . weight^T + bias); residual may be y itself. */
struct cx_op_linear {
  struct cx_op_head head;
  uint32_t k, n_parts;
  uint32_t x_stride, residual_stride;
  struct cx_ref x;
  struct cx_ref residual;
  struct cx_linear_part parts[CX_LINEAR_PARTS];
};

/* y[R, n] = act(x . gate^T) * (x . up^T) */
struct cx_op_gated_linear {
  struct cx_op_head head;
  uint32_t k, n;
  uint32_t x_stride, y_stride;
  uint32_t act; /* enum cx_activation */
  uint32_t reserved;
  struct cx_ref x, gate, up, y;
};

/* Normalises (where q_norm and k_norm are given: RMS over a head, weight f32[head_dim]) and rotates q[R, n_heads, head_dim] in place;
 * does the same to k[R, n_kv_heads, head_dim] and stores it, and v as it is, at the row's slot and position.
 * k_cache and v_cache are one layer's [n_slots, n_kv_heads, context, head_dim], of type f32 or bf16 (to nearest even). */
struct cx_op_rope_store {
  struct cx_op_head head;
  uint32_t n_heads, n_kv_heads, head_dim, rope_dim;
  uint32_t style; /* enum cx_rope_style */
  uint32_t context, n_slots;
  float eps;
  uint32_t q_stride, k_stride, v_stride, angles_stride;
  struct cx_ref q, k, v, angles, q_norm, k_norm, k_cache, v_cache;
};

/* y[R, n_heads, head_dim] = softmax(scale * q . K^T) . V over positions 0..position of the row's slot.
 * Merged in blocks of CX_ATTENTION_BLOCK positions counted from position 0, in order: a row's bits depend on its own prefix alone. */
#define CX_ATTENTION_BLOCK 64
struct cx_op_attention {
  struct cx_op_head head;
  uint32_t n_heads, n_kv_heads, head_dim;
  uint32_t context, n_slots;
  float scale;
  uint32_t q_stride, y_stride;
  struct cx_ref q, y, k_cache, v_cache;
};

/* y[n_out, dim] = the rows of x that the step wants logits for */
struct cx_op_select_rows {
  struct cx_op_head head;
  uint32_t dim, x_stride, y_stride;
  uint32_t reserved;
  struct cx_ref x, y;
};

/* 32 activations as whole numbers: x is about scale * q. */
struct cx_int8_group {
  float scale;     /* the largest magnitude over 127 */
  float sum;       /* of q, and of its first and last 16 */
  float halves[2];
  int8_t q[32];    /* x / scale to the nearest, ties to even: -127 to 127 */
};
#define CX_INT8_GROUP_FLOATS 12 /* the group's place in a row, where rows are counted in floats */

/* y[R, dim / 32] of struct cx_int8_group from x[R, dim] of f32; dim is a multiple of 32. y_stride counts floats.
 * CX_OP_LINEAR_INT8 is struct cx_op_linear and CX_OP_GATED_LINEAR_INT8 struct cx_op_gated_linear whose x is such a y; their
 * weights are of types that cx_quant_takes_int8. */
struct cx_op_quantize {
  struct cx_op_head head;
  uint32_t dim, x_stride, y_stride;
  uint32_t reserved;
  struct cx_ref x, y;
};

/* The head of a plan image; n_ops records follow at CX_OP_BYTES. */
struct cx_plan_head {
  uint32_t magic, version;
  uint32_t n_ops, n_arenas;
  uint32_t max_rows, max_out; /* most rows, and most output rows, of one step */
  uint32_t vocab, context, n_slots;
  uint32_t logits_stride;     /* floats */
  struct cx_ref logits;       /* f32[max_out, vocab] */
};

#endif
