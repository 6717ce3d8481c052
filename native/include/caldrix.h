/* The whole C interface of caldrix: what cffi parses is what C compiles (API mode), so a mismatch is a compile error.
 *
 * Calls that can fail return CX_OK or a negative CX_E code; those that take a struct cx_error fill it with one line for a person.
 * Nothing here prints, exits, reads the environment or keeps global state; two models may run in one process.
 * cx_model_step may be called from one thread at a time for one model; cx_model_cancel from any thread, until cx_model_free.
 */
#ifndef CALDRIX_H
#define CALDRIX_H

#include <stddef.h>
#include <stdint.h>

#include "ops.h"

enum cx_status {
  CX_OK = 0,
  CX_EINVAL = -1,    /* an argument or a plan that does not check */
  CX_ENOMEM = -2,
  CX_ETHREAD = -3,   /* a thread could not be started */
  CX_ECANCELLED = -4 /* cx_model_cancel was called; the step's rows hold nothing of use */
};

struct cx_error {
  int code;
  char message[252];
};

/* --- instruction-set rows: names such as "x86-64-v3", best first ---------------------------------------------------- */
int cx_row_count(void);
const char *cx_row_name(int index); /* NULL for an index that is none */
int cx_row_usable(int index); /* 1 when this processor has what the row needs */

/* --- quant types: the table of quant/quants.h ----------------------------------------------------------------------- */
struct cx_quant_info {
  const char *name;        /* lower case, GGUF spelling: "q4_k" */
  uint32_t id;             /* GGUF's type number */
  uint32_t block_elements; /* a row's length is a multiple of this */
  uint32_t block_bytes;
};
int cx_quant_count(void);
const struct cx_quant_info *cx_quant_at(int index); /* NULL for an index that is none */
const struct cx_quant_info *cx_quant_find(uint32_t id); /* NULL for an unknown type */
int cx_quant_takes_int8(uint32_t id); /* 1 when CX_OP_LINEAR_INT8 takes such a weight */

/* The plain decoder, the judge of every vector decoder: n_elements values to f32. CX_EINVAL for an unknown type or a part of a block. */
int cx_quant_decode(uint32_t type, const void *src, uint64_t n_elements, float *dst);
/* The same through a row's vector decoder, for tests. CX_EINVAL for a row that is none or not usable too. */
int cx_quant_decode_row(const char *row, uint32_t type, const void *src, uint64_t n_elements, float *dst);

/* Types from this number on are caldrix's own: no file of others holds them. */
enum { CX_OWN_TYPES = 64 };

/* Packs bf16[n_blocks * CX_PLANES_VALUES] as planes without loss (quant/planes.h), at any alignment. CX_EINVAL, with some blocks
 * written, where one cannot be packed. */
enum { CX_PLANES_VALUES = 256, CX_PLANES_BYTES = 398 };
int cx_planes_pack(const void *bf16, uint64_t n_blocks, void *planes);

/* --- the machine's limits, for judging speeds ------------------------------------------------------------------------- */
enum cx_limit {
  CX_LIMIT_READ, /* bytes read in order from `data` */
  CX_LIMIT_FMA,  /* f32 operations, two for a multiply-add; data: floats */
  CX_LIMIT_INT8, /* the same of 8-bit integers, summed in 32 bits; data: bytes below 128 */
  CX_LIMIT_COUNT
};

struct cx_limit_result {
  double seconds;    /* that the work took */
  double work;       /* bytes or operations */
  uint64_t checksum; /* of one pass over the data; the same for the same data, row and threads */
};

/* Runs whole passes on n_threads of a pool for at least min_seconds, after one that is not counted. READ goes over all the data,
 * which CX_LIMIT_PIECES divides into multiples of 256 bytes; the others over its first CX_LIMIT_PEAK_BYTES, which it must hold. */
enum { CX_LIMIT_PIECES = 1024, CX_LIMIT_PEAK_BYTES = 8192 };
int cx_limit_measure(const char *row, uint32_t limit, uint32_t n_threads, double min_seconds, const void *data, uint64_t bytes,
                     struct cx_limit_result *out, struct cx_error *error);

/* --- strings of files: each a little-endian u64 of its length, then its bytes --------------------------------------- */
struct cx_strings {
  uint64_t at;      /* where the first one lies; becomes where those that were walked end */
  uint64_t n;       /* how many there should be; becomes how many were walked */
  uint64_t n_bytes; /* becomes how many bytes of `out` they took */
};

/* Walks strings of data[size], at most n, up to one that does not lie in it whole. With out[capacity], which is not data, copies each
 * with a NUL behind it, and stops before one that does not fit or that holds a NUL. */
void cx_strings_walk(const void *data, uint64_t size, struct cx_strings *walk, char *out, uint64_t capacity);

/* --- a model: a checked plan, its memory and its threads ------------------------------------------------------------ */
struct cx_model;

struct cx_arena {
  void *base; /* owned by the caller, who keeps it alive until cx_model_free; arenas 1 to 3 are 64-byte aligned */
  uint64_t size;
};

struct cx_options {
  const char *row;    /* a usable row's name, or NULL for the best */
  uint32_t n_threads; /* 1 or more, the calling thread included */
  uint32_t reserved;
};

/* arenas[i] is the memory of arena id i; arenas[0] is empty. The plan is copied, the arenas are not. */
int cx_model_new(const void *plan, uint64_t plan_bytes, const struct cx_arena *arenas, uint32_t n_arenas,
                 const struct cx_options *options, struct cx_model **out, struct cx_error *error);
void cx_model_free(struct cx_model *model); /* joins its threads; NULL is allowed */

struct cx_bias {
  uint32_t token;
  float value; /* added to the token's score; finite */
};

/* Changes of the scores before all else, for the few rows that ask. Order: bias, presence and frequency, then the repetition penalty,
 * then the mask. */
struct cx_adjust {
  float presence_penalty;    /* taken off once from a token in `generated`; finite, as is the next */
  float frequency_penalty;   /* ... and once for each time it stands there */
  uint32_t n_bias;
  uint32_t n_generated;
  const struct cx_bias *bias;
  const uint32_t *generated; /* n_generated token ids, in any order */
  const uint32_t *allowed;   /* bit i % 32 of word i / 32: token i may be picked, one at least; NULL: all may */
};

/* How to pick one token. Order: adjustments, repetition penalty, mask, top-k, top-p, min-p, temperature, draw. */
struct cx_sampling {
  float temperature;        /* >= 0; 0 takes the most likely token, the lowest id of equals, without a draw */
  float top_p;              /* 0 < p <= 1; 1 keeps all */
  float min_p;              /* 0 to 1; 0 keeps all */
  float repetition_penalty; /* > 0; 1 is off: a positive score is divided, a negative one multiplied */
  uint32_t top_k;           /* 0 keeps all, as does a number above the vocabulary */
  uint32_t n_recent;
  uint64_t seed;
  uint64_t draw;            /* which draw of this seed: the index of the token in its reply */
  const uint32_t *recent;   /* n_recent token ids the penalty applies to; repeats count once */
  const struct cx_adjust *adjust; /* NULL: none */
};

enum { CX_MAX_TOP = 20 };
#define CX_PICKED_TOKEN 0xffffffff

/* Log-probabilities of one output row: the log-softmax of its logits as the model gave them, whatever the sampling. Every number is
 * finite; a row with CX_PICK_NOT_FINITE is left without any (logprob 0, n_top 0). */
struct cx_logprobs {
  uint32_t wanted; /* 0: the row is not looked at */
  uint32_t n_top;  /* how many of the most likely tokens, up to CX_MAX_TOP; becomes how many there are */
  uint32_t token;  /* whose log-probability; CX_PICKED_TOKEN: the one picked */
  float logprob;
  uint32_t top_tokens[CX_MAX_TOP]; /* most likely first, the lowest id of equals */
  float top_logprobs[CX_MAX_TOP];
};

enum cx_pick_status { CX_PICK_OK = 0, CX_PICK_NOT_FINITE = 1 };

/* One step: n_rows tokens of any mix of sequences, each at its slot and position. Rows of one slot stand in strictly ascending position.
 * out_rows[n_out] are the indices of the rows whose logits are wanted, strictly ascending; their logits are at the plan's logits
 * reference until the next step. With sampling != NULL (n_out entries) picks and pick_status (n_out each) are filled, and logprobs
 * (n_out entries, or NULL) too. */
struct cx_step {
  uint32_t n_rows, n_out;
  const uint32_t *tokens, *positions, *slots;
  const uint32_t *out_rows;
  const struct cx_sampling *sampling;
  uint32_t *picks;
  uint8_t *pick_status; /* enum cx_pick_status */
  struct cx_logprobs *logprobs;
};

int cx_model_step(struct cx_model *model, const struct cx_step *step, struct cx_error *error);
void cx_model_cancel(struct cx_model *model); /* the running step returns CX_ECANCELLED at its next op; none running: no effect */

/* Picks from logits[vocab], as a step does for each output row; returns an enum cx_pick_status. scratch is 8-byte aligned and
 * holds cx_sample_scratch(vocab) bytes. */
uint64_t cx_sample_scratch(uint32_t vocab);
int cx_sample(const float *logits, uint32_t vocab, const struct cx_sampling *sampling, void *scratch, uint32_t *pick);

/* Fills logprobs from logits[vocab], all of them finite, for a row whose pick was `picked`; scratch as for cx_sample. */
void cx_score(const float *logits, uint32_t vocab, uint32_t picked, void *scratch, struct cx_logprobs *logprobs);

#endif
