/* The plan checker: after it, kernels and the executor may trust every number of a plan.
 *
 * For each reference it computes the exact bytes an op can touch, from dims, strides and the head's most rows, in 64 bits
 * with overflow checks, and holds them against the arena. Rules beyond bounds, each because kernels rely on it:
 * activations and caches start on 64 bytes and activation rows are multiples of 64 bytes apart; only activations and the KV
 * arena are written; what an op writes overlaps nothing else it touches (in place only where ops.h says so), or its result
 * would depend on the order in which threads take its work.
 */
#include "plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/common.h"
#include "base/error.h"
#include "quant/quants.h"

/* Far above any use; they keep sums of a few sizes inside 64 bits and tables indexed by slot or op small. */
#define MAX_OPS (1u << 20)
#define MAX_ROWS (1u << 19) /* picks are pieces of one stage: CX_MAX_PIECES of base/threads.h */
#define MAX_SLOTS (1u << 20)
#define MAX_DIM (1u << 30) /* also vocab and context */

#define MAX_REGIONS 12

static const char *const op_names[CX_OP_COUNT] = {
    [CX_OP_EMBED] = "embed",
    [CX_OP_ROPE_ANGLES] = "rope_angles",
    [CX_OP_RMS_NORM] = "rms_norm",
    [CX_OP_LINEAR] = "linear",
    [CX_OP_GATED_LINEAR] = "gated_linear",
    [CX_OP_ROPE_STORE] = "rope_store",
    [CX_OP_ATTENTION] = "attention",
    [CX_OP_SELECT_ROWS] = "select_rows",
    [CX_OP_QUANTIZE] = "quantize",
    [CX_OP_LINEAR_INT8] = "linear_int8",
    [CX_OP_GATED_LINEAR_INT8] = "gated_linear_int8",
};

const char *cx_op_name(uint32_t op) {
  return op < CX_OP_COUNT ? op_names[op] : NULL;
}

enum access { READ, WRITE };

/* Rows of `width` bytes, `stride` bytes apart, from `begin` to `end` of an arena. */
struct region {
  const char *name;
  uint32_t arena;
  enum access access;
  uint64_t begin, end, stride, width;
};

/* One op, or the head, under check. */
struct check {
  const struct cx_plan_head *head;
  const struct cx_arena *arenas;
  struct cx_error *error;
  const char *subject; /* "op 12 (linear)" */
  struct region regions[MAX_REGIONS];
  uint32_t n_regions;
};

CX_PRINTF(3, 4) static int refuse(struct check *check, const char *field, const char *format, ...) {
  char reason[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  return cx_fail(check->error, CX_EINVAL, "plan: %s: %s: %s", check->subject, field, reason);
}

/* *value *= by; 0 when the product does not fit 64 bits. */
static int multiply(uint64_t *value, uint64_t by) {
  if (by != 0 && *value > UINT64_MAX / by) return 0;
  *value *= by;
  return 1;
}

static int dim(struct check *check, const char *name, uint64_t value) {
  if (value >= 1 && value <= MAX_DIM) return CX_OK;
  return refuse(check, name, "%llu: takes 1 to %u", (unsigned long long)value, MAX_DIM);
}

/* Checks that [offset, offset + bytes) is inside the arena, and notes the region for the overlap check. */
static int inside(struct check *check, const char *name, const struct cx_ref *ref, uint64_t bytes, struct region region) {
  const struct cx_arena *arena = &check->arenas[ref->arena];
  if (ref->offset > arena->size || bytes > arena->size - ref->offset)
    return refuse(check, name, "%llu bytes at %llu end past arena %u of %llu bytes", (unsigned long long)bytes,
                  (unsigned long long)ref->offset, ref->arena, (unsigned long long)arena->size);
  region.name = name;
  region.arena = ref->arena;
  region.begin = ref->offset;
  region.end = ref->offset + bytes;
  check->regions[check->n_regions++] = region;
  return CX_OK;
}

/* f32 rows in the activation arena: [n_rows, width], `stride` floats apart. */
static int activation(struct check *check, const char *name, const struct cx_ref *ref, uint32_t n_rows, uint64_t width,
                      uint32_t stride, enum access access) {
  if (ref->arena != CX_ARENA_ACTIVATIONS)
    return refuse(check, name, "arena %u: activations are in arena %d", ref->arena, CX_ARENA_ACTIVATIONS);
  if (ref->type != cx_type_f32) return refuse(check, name, "type %u: activations are f32", ref->type);
  if (ref->offset % 64 != 0)
    return refuse(check, name, "offset %llu: takes multiples of 64", (unsigned long long)ref->offset);
  if (stride % 16 != 0 || stride < width)
    return refuse(check, name, "stride %u: takes multiples of 16 floats from %llu", stride, (unsigned long long)width);
  uint64_t bytes = n_rows == 0 ? 0 : ((uint64_t)(n_rows - 1) * stride + width) * 4;
  struct region region = {.access = access, .stride = (uint64_t)stride * 4, .width = width * 4};
  return inside(check, name, ref, bytes, region);
}

/* A reference to memory that is only read: weights made by caldrix (64-byte aligned) or a mapped file. */
static int weight_arena(struct check *check, const char *name, const struct cx_ref *ref) {
  if (ref->arena < CX_ARENA_WEIGHTS || ref->arena >= check->head->n_arenas)
    return refuse(check, name, "arena %u: weights are in arenas %d to %u", ref->arena, CX_ARENA_WEIGHTS,
                  check->head->n_arenas - 1);
  if (ref->arena == CX_ARENA_WEIGHTS && ref->offset % 64 != 0)
    return refuse(check, name, "offset %llu: takes multiples of 64", (unsigned long long)ref->offset);
  return CX_OK;
}

/* weight[n, k] of any type of the quant table, rows without padding. */
static int matrix(struct check *check, const char *name, const struct cx_ref *ref, uint32_t n, uint32_t k) {
  if (weight_arena(check, name, ref)) return CX_EINVAL;
  const struct cx_quant_info *info = cx_quant_find(ref->type);
  if (info == NULL) return refuse(check, name, "type %u: not a type of the quant table", ref->type);
  if (k % info->block_elements != 0 || (info->block_elements > 1 && k % 32 != 0))
    return refuse(check, name, "rows of %u values: %s takes multiples of %u", k, info->name, info->block_elements);
  uint64_t row_bytes = (uint64_t)(k / info->block_elements) * info->block_bytes, bytes = row_bytes;
  if (!multiply(&bytes, n)) return refuse(check, name, "%u rows of %u values: too large", n, k);
  struct region region = {.access = READ, .stride = row_bytes, .width = row_bytes};
  return inside(check, name, ref, bytes, region);
}

/* f32[n] among the weights, at a multiple of 4 bytes. */
static int vector(struct check *check, const char *name, const struct cx_ref *ref, uint32_t n) {
  if (weight_arena(check, name, ref)) return CX_EINVAL;
  if (ref->type != cx_type_f32) return refuse(check, name, "type %u: takes f32", ref->type);
  if (((uintptr_t)check->arenas[ref->arena].base + ref->offset) % 4 != 0)
    return refuse(check, name, "offset %llu: takes multiples of 4", (unsigned long long)ref->offset);
  uint64_t bytes = (uint64_t)n * 4;
  struct region region = {.access = READ, .stride = bytes, .width = bytes};
  return inside(check, name, ref, bytes, region);
}

static int optional_vector(struct check *check, const char *name, const struct cx_ref *ref, uint32_t n) {
  return ref->arena == CX_ARENA_NONE ? CX_OK : vector(check, name, ref, n);
}

/* One layer's keys or values: [n_slots, n_kv_heads, context, head_dim] of f32 or bf16 in the KV arena. */
static int cache(struct check *check, const char *name, const struct cx_ref *ref, const uint32_t dims[4],
                 enum access access) {
  if (ref->arena != CX_ARENA_KV) return refuse(check, name, "arena %u: caches are in arena %d", ref->arena, CX_ARENA_KV);
  if (ref->type != cx_type_f32 && ref->type != cx_type_bf16)
    return refuse(check, name, "type %u: takes f32 or bf16", ref->type);
  if (ref->offset % 64 != 0)
    return refuse(check, name, "offset %llu: takes multiples of 64", (unsigned long long)ref->offset);
  uint64_t bytes = ref->type == cx_type_f32 ? 4 : 2;
  for (int i = 0; i < 4; i++)
    if (!multiply(&bytes, dims[i])) return refuse(check, name, "[%u, %u, %u, %u]: too large", dims[0], dims[1], dims[2], dims[3]);
  struct region region = {.access = access, .stride = bytes, .width = bytes};
  return inside(check, name, ref, bytes, region);
}

/* Whether two regions share a byte. Rows of one stride may interleave: then their columns are compared. */
static int overlap(const struct region *a, const struct region *b) {
  if (a->arena != b->arena || a->begin >= b->end || b->begin >= a->end) return 0;
  if (a->stride != b->stride) return 1;
  const struct region *first = a->begin <= b->begin ? a : b, *second = first == a ? b : a;
  uint64_t shift = (second->begin - first->begin) % a->stride;
  return shift < first->width || a->stride - shift < second->width;
}

/* What is written overlaps nothing; `in_place` names a read region that may be exactly what is written, or is NULL. */
static int check_overlaps(struct check *check, const char *in_place) {
  for (uint32_t i = 0; i < check->n_regions; i++) {
    const struct region *written = &check->regions[i];
    if (written->access != WRITE) continue;
    for (uint32_t j = 0; j < check->n_regions; j++) {
      const struct region *other = &check->regions[j];
      if (j == i || !overlap(written, other)) continue;
      int same = written->begin == other->begin && written->stride == other->stride && written->width == other->width;
      if (in_place != NULL && other->access == READ && same && strcmp(other->name, in_place) == 0) continue;
      return refuse(check, written->name, "overlaps %s", other->name);
    }
  }
  return CX_OK;
}

static int finite(struct check *check, const char *name, float value) {
  return isfinite(value) ? CX_OK : refuse(check, name, "%f: takes a finite number", (double)value);
}

/* Ops that read a row's token, slot or position, and so run over the step's rows. */
static int step_rows(struct check *check, const struct cx_op_head *head) {
  return head->rows == CX_ROWS_STEP ? CX_OK : refuse(check, "rows", "%u: takes the step's rows only", head->rows);
}

static uint32_t most_rows(const struct check *check, const struct cx_op_head *head) {
  return head->rows == CX_ROWS_OUTPUT ? check->head->max_out : check->head->max_rows;
}

static int check_embed(struct check *check, const void *record) {
  const struct cx_op_embed *op = record;
  if (step_rows(check, &op->head) || dim(check, "dim", op->dim)) return CX_EINVAL;
  if (op->vocab < check->head->vocab || op->vocab > MAX_DIM)
    return refuse(check, "vocab", "%u: takes the plan's %u or more", op->vocab, check->head->vocab);
  return matrix(check, "table", &op->table, op->vocab, op->dim) ||
         activation(check, "y", &op->y, check->head->max_rows, op->dim, op->y_stride, WRITE) ||
         check_overlaps(check, NULL);
}

static int check_rope_angles(struct check *check, const void *record) {
  const struct cx_op_rope_angles *op = record;
  return step_rows(check, &op->head) || dim(check, "half", op->half) || finite(check, "scale", op->scale) ||
         vector(check, "inv_freq", &op->inv_freq, op->half) ||
         activation(check, "y", &op->y, check->head->max_rows, (uint64_t)op->half * 2, op->y_stride, WRITE) ||
         check_overlaps(check, NULL);
}

static int check_rms_norm(struct check *check, const void *record) {
  const struct cx_op_rms_norm *op = record;
  uint32_t n_rows = most_rows(check, &op->head);
  return dim(check, "dim", op->dim) || finite(check, "eps", op->eps) ||
         activation(check, "x", &op->x, n_rows, op->dim, op->x_stride, READ) ||
         vector(check, "weight", &op->weight, op->dim) ||
         activation(check, "y", &op->y, n_rows, op->dim, op->y_stride, WRITE) || check_overlaps(check, NULL);
}

/* Floats that k values take in the form of struct cx_int8_group. */
static uint64_t int8_width(uint32_t k) { return (uint64_t)(k / 32) * CX_INT8_GROUP_FLOATS; }

/* x and one weight of a linear op: as they are, or both fit for the integer ops. */
static int linear_input(struct check *check, const struct cx_op_head *head, const struct cx_ref *x, uint32_t k,
                        uint32_t stride) {
  const int is_int8 = head->op == CX_OP_LINEAR_INT8 || head->op == CX_OP_GATED_LINEAR_INT8;
  return activation(check, "x", x, most_rows(check, head), is_int8 ? int8_width(k) : k, stride, READ);
}

static int linear_weight(struct check *check, const char *name, const struct cx_op_head *head, const struct cx_ref *ref,
                         uint32_t n, uint32_t k) {
  if (matrix(check, name, ref, n, k)) return CX_EINVAL;
  const int is_int8 = head->op == CX_OP_LINEAR_INT8 || head->op == CX_OP_GATED_LINEAR_INT8;
  if (is_int8 && !cx_quant_takes_int8(ref->type))
    return refuse(check, name, "%s: does not go with int8 activations", cx_quant_find(ref->type)->name);
  return CX_OK;
}

static int check_linear(struct check *check, const void *record) {
  const struct cx_op_linear *op = record;
  uint32_t n_rows = most_rows(check, &op->head);
  int has_residual = op->residual.arena != CX_ARENA_NONE;
  if (dim(check, "k", op->k)) return CX_EINVAL;
  if (op->n_parts < 1 || op->n_parts > CX_LINEAR_PARTS)
    return refuse(check, "n_parts", "%u: takes 1 to %d", op->n_parts, CX_LINEAR_PARTS);
  if (has_residual && op->n_parts != 1) return refuse(check, "residual", "goes with one part, not %u", op->n_parts);
  if (linear_input(check, &op->head, &op->x, op->k, op->x_stride)) return CX_EINVAL;
  for (uint32_t i = 0; i < op->n_parts; i++) {
    const struct cx_linear_part *part = &op->parts[i];
    if (dim(check, "n", part->n) || linear_weight(check, "weight", &op->head, &part->weight, part->n, op->k) ||
        optional_vector(check, "bias", &part->bias, part->n) ||
        activation(check, "y", &part->y, n_rows, part->n, part->y_stride, WRITE))
      return CX_EINVAL;
  }
  if (has_residual &&
      activation(check, "residual", &op->residual, n_rows, op->parts[0].n, op->residual_stride, READ))
    return CX_EINVAL;
  return check_overlaps(check, "residual");
}

static int check_gated_linear(struct check *check, const void *record) {
  const struct cx_op_gated_linear *op = record;
  uint32_t n_rows = most_rows(check, &op->head);
  if (op->act != CX_ACT_SILU) return refuse(check, "act", "%u: not a known activation", op->act);
  return dim(check, "k", op->k) || dim(check, "n", op->n) ||
         linear_input(check, &op->head, &op->x, op->k, op->x_stride) ||
         linear_weight(check, "gate", &op->head, &op->gate, op->n, op->k) ||
         linear_weight(check, "up", &op->head, &op->up, op->n, op->k) ||
         activation(check, "y", &op->y, n_rows, op->n, op->y_stride, WRITE) || check_overlaps(check, NULL);
}

/* What the two ops that see the caches share. */
static int heads(struct check *check, uint32_t n_heads, const uint32_t cache_dims[4]) {
  uint32_t n_slots = cache_dims[0], n_kv_heads = cache_dims[1], context = cache_dims[2], head_dim = cache_dims[3];
  if (dim(check, "n_heads", n_heads) || dim(check, "n_kv_heads", n_kv_heads) || dim(check, "head_dim", head_dim) ||
      dim(check, "n_heads * head_dim", (uint64_t)n_heads * head_dim))
    return CX_EINVAL;
  if (n_heads % n_kv_heads != 0) return refuse(check, "n_heads", "%u: not a multiple of n_kv_heads %u", n_heads, n_kv_heads);
  if (context < check->head->context || context > MAX_DIM)
    return refuse(check, "context", "%u: takes the plan's %u or more", context, check->head->context);
  if (n_slots < check->head->n_slots || n_slots > MAX_SLOTS)
    return refuse(check, "n_slots", "%u: takes the plan's %u or more", n_slots, check->head->n_slots);
  return CX_OK;
}

static int check_rope_store(struct check *check, const void *record) {
  const struct cx_op_rope_store *op = record;
  const uint32_t dims[4] = {op->n_slots, op->n_kv_heads, op->context, op->head_dim};
  uint32_t n_rows = check->head->max_rows;
  if (step_rows(check, &op->head) || heads(check, op->n_heads, dims) || finite(check, "eps", op->eps)) return CX_EINVAL;
  if (op->rope_dim == 0 || op->rope_dim % 2 != 0 || op->rope_dim > op->head_dim)
    return refuse(check, "rope_dim", "%u: takes an even number up to head_dim %u", op->rope_dim, op->head_dim);
  if (op->style != CX_ROPE_HALF && op->style != CX_ROPE_ADJACENT)
    return refuse(check, "style", "%u: not a known rope style", op->style);
  uint64_t q_width = (uint64_t)op->n_heads * op->head_dim, kv_width = (uint64_t)op->n_kv_heads * op->head_dim;
  return activation(check, "q", &op->q, n_rows, q_width, op->q_stride, WRITE) ||
         activation(check, "k", &op->k, n_rows, kv_width, op->k_stride, READ) ||
         activation(check, "v", &op->v, n_rows, kv_width, op->v_stride, READ) ||
         activation(check, "angles", &op->angles, n_rows, op->rope_dim, op->angles_stride, READ) ||
         optional_vector(check, "q_norm", &op->q_norm, op->head_dim) ||
         optional_vector(check, "k_norm", &op->k_norm, op->head_dim) ||
         cache(check, "k_cache", &op->k_cache, dims, WRITE) || cache(check, "v_cache", &op->v_cache, dims, WRITE) ||
         check_overlaps(check, NULL);
}

static int check_attention(struct check *check, const void *record) {
  const struct cx_op_attention *op = record;
  const uint32_t dims[4] = {op->n_slots, op->n_kv_heads, op->context, op->head_dim};
  uint32_t n_rows = check->head->max_rows;
  uint64_t width = (uint64_t)op->n_heads * op->head_dim;
  return step_rows(check, &op->head) || heads(check, op->n_heads, dims) || finite(check, "scale", op->scale) ||
         activation(check, "q", &op->q, n_rows, width, op->q_stride, READ) ||
         cache(check, "k_cache", &op->k_cache, dims, READ) || cache(check, "v_cache", &op->v_cache, dims, READ) ||
         activation(check, "y", &op->y, n_rows, width, op->y_stride, WRITE) || check_overlaps(check, NULL);
}

static int check_select_rows(struct check *check, const void *record) {
  const struct cx_op_select_rows *op = record;
  if (op->head.rows != CX_ROWS_OUTPUT) return refuse(check, "rows", "%u: takes the output rows only", op->head.rows);
  return dim(check, "dim", op->dim) ||
         activation(check, "x", &op->x, check->head->max_rows, op->dim, op->x_stride, READ) ||
         activation(check, "y", &op->y, check->head->max_out, op->dim, op->y_stride, WRITE) || check_overlaps(check, NULL);
}

static int check_quantize(struct check *check, const void *record) {
  const struct cx_op_quantize *op = record;
  const uint32_t n_rows = most_rows(check, &op->head);
  if (dim(check, "dim", op->dim)) return CX_EINVAL;
  if (op->dim % 32 != 0) return refuse(check, "dim", "%u: takes multiples of 32", op->dim);
  return activation(check, "x", &op->x, n_rows, op->dim, op->x_stride, READ) ||
         activation(check, "y", &op->y, n_rows, int8_width(op->dim), op->y_stride, WRITE) || check_overlaps(check, NULL);
}

static int (*const op_checks[CX_OP_COUNT])(struct check *, const void *) = {
    [CX_OP_EMBED] = check_embed,
    [CX_OP_ROPE_ANGLES] = check_rope_angles,
    [CX_OP_RMS_NORM] = check_rms_norm,
    [CX_OP_LINEAR] = check_linear,
    [CX_OP_GATED_LINEAR] = check_gated_linear,
    [CX_OP_ROPE_STORE] = check_rope_store,
    [CX_OP_ATTENTION] = check_attention,
    [CX_OP_SELECT_ROWS] = check_select_rows,
    [CX_OP_QUANTIZE] = check_quantize,
    [CX_OP_LINEAR_INT8] = check_linear,
    [CX_OP_GATED_LINEAR_INT8] = check_gated_linear,
};

static int check_head(struct check *check, uint64_t image_bytes, uint32_t n_arenas) {
  const struct cx_plan_head *head = check->head;
  if (head->magic != CX_PLAN_MAGIC) return refuse(check, "magic", "%#x: not a plan", head->magic);
  if (head->version != CX_PLAN_VERSION)
    return refuse(check, "version", "%u: this build takes %d", head->version, CX_PLAN_VERSION);
  if (head->n_ops > MAX_OPS || image_bytes != ((uint64_t)head->n_ops + 1) * CX_OP_BYTES)
    return refuse(check, "n_ops", "%u: does not fit an image of %llu bytes", head->n_ops, (unsigned long long)image_bytes);
  if (head->n_arenas != n_arenas || n_arenas < CX_ARENA_FILES)
    return refuse(check, "n_arenas", "%u: %u were given, and %d is the least", head->n_arenas, n_arenas, CX_ARENA_FILES);
  if (head->max_rows < 1 || head->max_rows > MAX_ROWS) return refuse(check, "max_rows", "%u: takes 1 to %u", head->max_rows, MAX_ROWS);
  if (head->max_out > head->max_rows) return refuse(check, "max_out", "%u: takes 0 to max_rows %u", head->max_out, head->max_rows);
  if (head->n_slots < 1 || head->n_slots > MAX_SLOTS) return refuse(check, "n_slots", "%u: takes 1 to %u", head->n_slots, MAX_SLOTS);
  for (uint32_t i = CX_ARENA_ACTIVATIONS; i < CX_ARENA_FILES; i++)
    if ((uintptr_t)check->arenas[i].base % 64 != 0) return refuse(check, "arenas", "arena %u is not 64-byte aligned", i);
  for (uint32_t i = CX_ARENA_ACTIVATIONS; i < n_arenas; i++)
    if (check->arenas[i].base == NULL && check->arenas[i].size != 0) return refuse(check, "arenas", "arena %u has no memory", i);
  return dim(check, "vocab", head->vocab) || dim(check, "context", head->context) ||
         activation(check, "logits", &head->logits, head->max_out, head->vocab, head->logits_stride, READ);
}

static int check_op(struct check *check, uint32_t index, const void *record) {
  const struct cx_op_head *head = record;
  const char *name = cx_op_name(head->op);
  char subject[48];
  snprintf(subject, sizeof subject, "op %u (%s)", index, name != NULL ? name : "unknown");
  check->subject = subject;
  check->n_regions = 0;
  int status;
  if (name == NULL) status = refuse(check, "op", "code %u is not known", head->op);
  else if (head->rows > CX_ROWS_OUTPUT) status = refuse(check, "rows", "%u: takes 0 or 1", head->rows);
  else status = op_checks[head->op](check, record);
  check->subject = NULL;
  return status ? CX_EINVAL : CX_OK;
}

int cx_plan_open(const void *image, uint64_t image_bytes, const struct cx_arena *arenas, uint32_t n_arenas,
                 struct cx_plan *out, struct cx_error *error) {
  struct check check = {.head = &out->head, .arenas = arenas, .error = error, .subject = "head"};
  out->ops = NULL;
  if (image_bytes < CX_OP_BYTES)
    return cx_fail(error, CX_EINVAL, "plan: %llu bytes: shorter than its head", (unsigned long long)image_bytes);
  memcpy(&out->head, image, sizeof out->head);
  if (check_head(&check, image_bytes, n_arenas)) return CX_EINVAL;

  size_t ops_bytes = (size_t)(image_bytes - CX_OP_BYTES);
  out->ops = aligned_alloc(64, ops_bytes != 0 ? ops_bytes : 64);
  if (out->ops == NULL) return cx_fail(error, CX_ENOMEM, "no memory for a plan of %u ops", out->head.n_ops);
  memcpy(out->ops, (const uint8_t *)image + CX_OP_BYTES, ops_bytes);
  for (uint32_t i = 0; i < out->head.n_ops; i++) {
    if (check_op(&check, i, cx_plan_op(out, i))) {
      cx_plan_close(out);
      return CX_EINVAL;
    }
  }
  return CX_OK;
}

void cx_plan_close(struct cx_plan *plan) {
  free(plan->ops);
  plan->ops = NULL;
}
