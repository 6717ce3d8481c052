/* Picks one token from a row of logits, and scores tokens: cx_sample and cx_score of caldrix.h. Pure arithmetic: no state, no allocation, no library call but log.
 *
 * Every filter keeps a prefix of one order: higher logit first, lower id first among equals. So what is left after any of them is one
 * `struct cut`, the last token kept, and no list of candidates travels between them. No full sort either: the vocabulary is cut into
 * chunks of CHUNK ids whose largest logit is known after the first pass; a filter looks only into chunks that can hold what it keeps.
 * Weights are exp((logit - largest) / temperature) in f32, by a polynomial of our own so that a seed gives the same reply on every libc;
 * sums of weights are f64. Loops over a chunk are plain C in a form that compilers turn into vector code.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "caldrix.h"

#define CHUNK 64
#define SUM_LANES 8

/* A logit as an integer in the same order: IEEE order is that of the bits, with the negative half reversed. */
static inline int32_t order_of(float logit) {
  uint32_t bits;
  const float unsigned_zero = logit + 0.0f; /* -0 and 0 are equals */
  memcpy(&bits, &unsigned_zero, sizeof bits);
  return (int32_t)(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu));
}

static inline float logit_of(int32_t order) {
  const uint32_t bits = (uint32_t)order ^ ((0u - ((uint32_t)order >> 31)) & 0x7fffffffu);
  float logit;
  memcpy(&logit, &bits, sizeof logit);
  return logit;
}

/* The last token kept: those before it in the order, and itself, are kept. */
struct cut {
  int32_t order;
  uint32_t id;
};

static const struct cut keep_all = {INT32_MIN, UINT32_MAX};

/* The order as one number to compare: larger comes first. */
static inline uint64_t pack(int32_t order, uint32_t id) {
  return (uint64_t)((uint32_t)order ^ 0x80000000u) << 32 | (0xffffffffu - id);
}

static inline struct cut unpack(uint64_t key) {
  return (struct cut){(int32_t)((uint32_t)(key >> 32) ^ 0x80000000u), 0xffffffffu - (uint32_t)key};
}

struct vocabulary {
  const float *logits; /* after the penalty */
  uint32_t n, n_chunks;
  uint32_t best;        /* the first token of the order */
  int32_t *chunk_order; /* [n_chunks] order of the chunk's largest logit */
  double *chunk_mass;   /* [n_chunks] weights kept in the chunk, of the latest mass() */
  uint64_t *keys;       /* [n] packed tokens, for one filter at a time */
};

static inline uint32_t chunk_length(const struct vocabulary *v, uint32_t chunk) {
  return chunk + 1 < v->n_chunks ? CHUNK : v->n - chunk * CHUNK;
}

/* condition ? value : 0 without a branch, which would keep a loop from becoming vector code. */
static inline float value_if(int condition, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits &= 0u - (uint32_t)condition;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* max(x, -100) for x <= 0. Of two negative floats the smaller has the larger bits; a comparison of floats would become a branch. */
static inline float at_least_minus_100(float x) {
  const int32_t hundred = -0x3d380000; /* the bits of -100.0f */
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits |= INT32_MIN;
  bits = bits < hundred ? bits : hundred;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* exp(x) for x <= 0 within 2 units in the last place; 0 below -87.7, where f32 turns subnormal. exp(0) is 1. */
static inline float exp_negative(float x) {
  const float limited = at_least_minus_100(x);
  const float n = (limited * 0x1.715476p+0f + 0x1.8p+23f) - 0x1.8p+23f; /* x / ln 2 to the nearest whole number */
  const float r = (limited - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;   /* ln 2 in two parts: the first product is exact */
  float p = 0x1.6c16c2p-10f;                                           /* Taylor: |r| <= ln 2 / 2 */
  p = p * r + 0x1.111112p-7f;
  p = p * r + 0x1.555556p-5f;
  p = p * r + 0x1.555556p-3f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent = (int32_t)n + 127;
  const uint32_t bits = (uint32_t)(exponent > 0 ? exponent : 0) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

/* Largest order of a chunk; *magnitude grows to the largest exponent and fraction bits seen. */
static inline int32_t scan_chunk(const float *logits, uint32_t n, int32_t *magnitude) {
  int32_t largest = INT32_MIN, widest = *magnitude;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &logits[i], sizeof bits);
    const int32_t width = (int32_t)(bits & 0x7fffffffu), order = order_of(logits[i]);
    widest = width > widest ? width : widest;
    largest = order > largest ? order : largest;
  }
  *magnitude = widest;
  return largest;
}

/* Fills chunk_order and best. Returns 0 when a logit is NaN or infinite; with a NaN, best is left alone. */
static int scan(struct vocabulary *v) {
  int32_t magnitude = 0, largest = INT32_MIN;
  uint32_t at = 0;
  for (uint32_t c = 0; c < v->n_chunks; c++) {
    const uint32_t n = chunk_length(v, c);
    const float *logits = v->logits + (size_t)c * CHUNK;
    v->chunk_order[c] = n == CHUNK ? scan_chunk(logits, CHUNK, &magnitude) : scan_chunk(logits, n, &magnitude);
    if (c == 0 || v->chunk_order[c] > largest) largest = v->chunk_order[c], at = c;
  }
  if (magnitude > 0x7f800000) return 0;
  v->best = at * CHUNK;
  while (order_of(v->logits[v->best]) != largest) v->best++;
  return magnitude != 0x7f800000;
}

/* weights[i] of a chunk's tokens, 0 for those past the cut. */
static inline void weigh_chunk(const float *logits, uint32_t n, uint32_t first_id, float largest, float temperature, struct cut cut,
                               float weights[CHUNK]) {
  for (uint32_t i = 0; i < n; i++) {
    const int32_t order = order_of(logits[i]);
    const int kept = (order > cut.order) | ((order == cut.order) & (first_id + i <= cut.id));
    weights[i] = value_if(kept, exp_negative((logits[i] - largest) / temperature));
  }
}

static void weigh(const struct vocabulary *v, uint32_t chunk, float temperature, struct cut cut, float weights[CHUNK]) {
  const uint32_t n = chunk_length(v, chunk), first_id = chunk * CHUNK;
  const float *logits = v->logits + first_id, largest = v->logits[v->best];
  if (n == CHUNK) {
    weigh_chunk(logits, CHUNK, first_id, largest, temperature, cut, weights);
    return;
  }
  memset(weights, 0, CHUNK * sizeof *weights);
  weigh_chunk(logits, n, first_id, largest, temperature, cut, weights);
}

/* The sum of the weights up to the cut; the chunks' own sums stay in chunk_mass. */
static double mass(const struct vocabulary *v, float temperature, struct cut cut) {
  double total = 0;
  for (uint32_t c = 0; c < v->n_chunks; c++) {
    double sum = 0;
    if (v->chunk_order[c] >= cut.order) {
      float weights[CHUNK];
      double lanes[SUM_LANES] = {0};
      weigh(v, c, temperature, cut, weights);
      for (uint32_t i = 0; i < CHUNK; i += SUM_LANES)
        for (uint32_t j = 0; j < SUM_LANES; j++) lanes[j] += (double)weights[i + j];
      for (uint32_t j = 0; j < SUM_LANES; j++) sum += lanes[j];
    }
    v->chunk_mass[c] = sum;
    total += sum;
  }
  return total;
}

/* keys = the tokens up to the cut, by ascending id; returns how many. */
static uint32_t gather(const struct vocabulary *v, struct cut cut) {
  const uint64_t floor = pack(cut.order, cut.id);
  uint32_t n = 0;
  for (uint32_t c = 0; c < v->n_chunks; c++) {
    if (v->chunk_order[c] < cut.order) continue;
    const uint32_t end = c * CHUNK + chunk_length(v, c);
    for (uint32_t id = c * CHUNK; id < end; id++) {
      v->keys[n] = pack(order_of(v->logits[id]), id);
      n += v->keys[n] >= floor;
    }
  }
  return n;
}

/* splitmix64's finaliser: every bit of the result depends on every bit of x. */
static inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* What a token adds to a prefix: its probability's weight, or 1 when tokens are counted (largest is then NULL). */
static inline double worth(uint64_t key, const float *largest) {
  return largest ? (double)exp_negative(logit_of(unpack(key).order) - *largest) : 1.0;
}

/* The last key of the shortest prefix (larger keys first) of keys[n] worth at least target; the smallest key when even all of them fall
 * short. Quickselect: about 2 n steps; the pivots are scattered so that no order of logits is a bad one. n >= 1. */
static uint64_t select_prefix(uint64_t *keys, uint32_t n, double target, const float *largest) {
  uint32_t begin = 0, end = n;
  uint64_t pivot = 0;
  while (begin < end) {
    const uint32_t at = begin + (uint32_t)(mix(end - begin) % (end - begin));
    double before = 0;
    uint32_t split = begin;
    pivot = keys[at];
    keys[at] = keys[end - 1];
    for (uint32_t i = begin; i < end - 1; i++) {
      const uint64_t key = keys[i];
      if (key < pivot) continue;
      before += worth(key, largest);
      keys[i] = keys[split];
      keys[split++] = key;
    }
    if (before >= target) {
      end = split;
      continue;
    }
    target -= before + worth(pivot, largest);
    if (target <= 0) return pivot;
    keys[end - 1] = keys[split];
    begin = split + 1;
    keys[split] = pivot;
  }
  return pivot;
}

/* The k-th token of the order, 1 <= k < n. Where there are k chunks, the k-th largest of their maxima is a floor under it. */
static struct cut cut_top_k(const struct vocabulary *v, uint32_t k) {
  struct cut floor = keep_all;
  if (k < v->n_chunks) {
    for (uint32_t c = 0; c < v->n_chunks; c++) v->keys[c] = pack(v->chunk_order[c], c);
    floor.order = unpack(select_prefix(v->keys, v->n_chunks, k, NULL)).order;
  }
  return unpack(select_prefix(v->keys, gather(v, floor), k, NULL));
}

/* The last token of the smallest set within cut that holds top_p of its probability. It looks at the tokens within 4 of the largest
 * logit first and widens until they suffice: few tokens hold nearly everything as a rule. */
static struct cut cut_top_p(const struct vocabulary *v, float top_p, struct cut cut) {
  const float largest = v->logits[v->best];
  const double target = (double)top_p * mass(v, 1.0f, cut);
  for (float reach = 4;; reach *= 1.5f) {
    const int32_t order = order_of(largest - reach);
    const int whole = order <= cut.order || reach > 200;
    const uint32_t n = gather(v, whole ? cut : (struct cut){order, UINT32_MAX});
    double gathered = 0;
    for (uint32_t i = 0; i < n && !whole; i++) gathered += worth(v->keys[i], &largest);
    if (whole || gathered >= target) return unpack(select_prefix(v->keys, n, target, &largest));
  }
}

/* The stricter of cut and "a probability at least min_p of the largest", which is a logit at least largest + log(min_p). */
static struct cut cut_min_p(const struct vocabulary *v, float min_p, struct cut cut) {
  const double largest = (double)v->logits[v->best], log_min_p = log((double)min_p);
  float lowest = (float)(largest + log_min_p);
  if ((double)lowest - largest < log_min_p) lowest = nextafterf(lowest, FLT_MAX); /* the conversion rounded down */
  const int32_t order = order_of(lowest);
  return order > cut.order ? (struct cut){order, UINT32_MAX} : cut;
}

/* Draws one token up to the cut. Tokens stand in ascending id; the draw is where a fraction of their total weight falls. */
static uint32_t draw_token(const struct vocabulary *v, float temperature, struct cut cut, uint64_t seed, uint64_t draw) {
  const uint64_t golden = 0x9e3779b97f4a7c15u;
  const uint64_t random = mix(mix(seed + golden) + (draw + 1) * golden);
  const double target = (double)(random >> 11) * 0x1p-53 * mass(v, temperature, cut);
  double before = 0;
  uint32_t chunk = 0, last = v->best;
  float weights[CHUNK];
  while (chunk + 1 < v->n_chunks && before + v->chunk_mass[chunk] <= target) before += v->chunk_mass[chunk++];
  weigh(v, chunk, temperature, cut, weights);
  for (uint32_t i = 0; i < CHUNK; i++) {
    if (weights[i] == 0.0f) continue;
    last = chunk * CHUNK + i;
    before += (double)weights[i];
    if (before > target) break;
  }
  return last; /* rounding can leave the target past the end: then the last token of the chunk */
}

/* A score that leaves f32 stays at its largest value. */
static inline float bounded(float score) { return score > FLT_MAX ? FLT_MAX : score < -FLT_MAX ? -FLT_MAX : score; }

/* A token outside the vocabulary is nobody's, and a score that is not finite must stay so, to be found by scan(). */
static inline int can_change(const float *values, uint32_t vocab, uint32_t id) { return id < vocab && isfinite(values[id]); }

static void add_bias(float *values, uint32_t vocab, const struct cx_adjust *adjust) {
  for (uint32_t i = 0; i < adjust->n_bias; i++) {
    const uint32_t id = adjust->bias[i].token;
    if (can_change(values, vocab, id)) values[id] = bounded(values[id] + adjust->bias[i].value);
  }
}

/* counts[vocab] need not be clear: only entries of tokens generated are used, and those are set first. */
static void penalise_generated(float *values, uint32_t vocab, const struct cx_adjust *adjust, uint32_t *counts) {
  const uint32_t *generated = adjust->generated, n = adjust->n_generated;
  for (uint32_t i = 0; i < n; i++)
    if (generated[i] < vocab) counts[generated[i]] = 0;
  for (uint32_t i = 0; i < n; i++)
    if (generated[i] < vocab) counts[generated[i]]++;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t id = generated[i];
    if (!can_change(values, vocab, id) || counts[id] == 0) continue;
    values[id] = bounded(values[id] - (adjust->presence_penalty + adjust->frequency_penalty * (float)counts[id]));
    counts[id] = 0;
  }
}

/* before[vocab] as counts above: a token's score before the penalty, so that repeats count once. */
static void penalise_recent(float *values, uint32_t vocab, const struct cx_sampling *sampling, float *before) {
  const uint32_t *recent = sampling->recent;
  const float penalty = sampling->repetition_penalty;
  for (uint32_t i = 0; i < sampling->n_recent; i++)
    if (recent[i] < vocab) before[recent[i]] = values[recent[i]];
  for (uint32_t i = 0; i < sampling->n_recent; i++) {
    const uint32_t id = recent[i];
    if (can_change(values, vocab, id)) values[id] = bounded(before[id] > 0 ? before[id] / penalty : before[id] * penalty);
  }
}

static void mask(float *values, uint32_t vocab, const uint32_t *allowed) {
  for (uint32_t id = 0; id < vocab; id++)
    if (!(allowed[id / 32] >> id % 32 & 1)) values[id] = -INFINITY;
}

static uint32_t chunks_of(uint32_t vocab) { return vocab / CHUNK + (vocab % CHUNK != 0); }

uint64_t cx_sample_scratch(uint32_t vocab) {
  const uint64_t per_token = sizeof(uint64_t) + sizeof(float), per_chunk = sizeof(double) + sizeof(int32_t);
  return vocab * per_token + chunks_of(vocab) * per_chunk;
}

static struct vocabulary open_vocabulary(const float *logits, uint32_t vocab, void *scratch) {
  struct vocabulary v = {.logits = logits, .n = vocab, .n_chunks = chunks_of(vocab), .keys = scratch};
  v.chunk_mass = (double *)(v.keys + vocab);
  v.chunk_order = (int32_t *)(v.chunk_mass + v.n_chunks);
  return v;
}

/* Rules 0 to 3: what the filters see. Returns 0 when a logit is NaN or infinite. */
static int open_scores(struct vocabulary *v, const struct cx_sampling *sampling) {
  const struct cx_adjust *adjust = sampling->adjust;
  const int is_penalised = sampling->n_recent != 0 && sampling->repetition_penalty != 1.0f;
  if (adjust == NULL && !is_penalised) return scan(v);
  float *values = (float *)(v->chunk_order + v->n_chunks);
  memcpy(values, v->logits, v->n * sizeof *values);
  v->logits = values;
  if (adjust != NULL) {
    add_bias(values, v->n, adjust);
    penalise_generated(values, v->n, adjust, (uint32_t *)v->keys);
  }
  if (is_penalised) penalise_recent(values, v->n, sampling, (float *)v->keys);
  if (!scan(v)) return 0;
  if (adjust != NULL && adjust->allowed != NULL) {
    mask(values, v->n, adjust->allowed);
    scan(v); /* again, for the best token allowed; a masked score is infinitely low on purpose */
  }
  return 1;
}

/* The rules, in order:
 * 0. A logit that is NaN or infinite: CX_PICK_NOT_FINITE, and *pick is 0.
 * 1. Bias: each entry is added to its token's logit. Presence and frequency: presence + frequency * (times in generated) is taken off
 *    each token generated.
 * 2. Repetition penalty: once for each distinct id in recent: a positive score is divided by it, any other multiplied.
 * 3. Mask: a token that is not allowed has a weight of 0 in all that follows.
 * 4. temperature 0: the first token of the order (largest logit, lowest id of equals). Nothing is cut and nothing drawn.
 * 5. top-k: the first k tokens of the order. 0 or k >= vocab keeps all.
 * 6. top-p: the shortest prefix of the order whose probabilities, at temperature 1 and summing to 1 over what top-k left, add up to
 *    top_p or more. Always at least one token; 1 keeps all.
 * 7. min-p: a token whose probability is below min_p times the most likely one's is dropped. That one always stays; 0 keeps all.
 * 8. temperature: weights exp((logit - largest) / temperature); one so small that it is less than exp(-87.7) counts as 0.
 * 9. One draw: a number in [0, 1) of 53 bits made from (seed, draw) alone, walked over the weights by ascending id.
 * scratch is 8-byte aligned; vocab >= 1. */
int cx_sample(const float *logits, uint32_t vocab, const struct cx_sampling *sampling, void *scratch, uint32_t *pick) {
  struct vocabulary v = open_vocabulary(logits, vocab, scratch);
  *pick = 0;
  if (!open_scores(&v, sampling)) return CX_PICK_NOT_FINITE;
  *pick = v.best;
  if (!(sampling->temperature > 0.0f)) return CX_PICK_OK;
  struct cut cut = keep_all;
  if (sampling->top_k != 0 && sampling->top_k < vocab) cut = cut_top_k(&v, sampling->top_k);
  if (sampling->top_p < 1.0f) cut = cut_top_p(&v, sampling->top_p, cut);
  if (sampling->min_p > 0.0f) cut = cut_min_p(&v, sampling->min_p, cut);
  *pick = draw_token(&v, sampling->temperature, cut, sampling->seed, sampling->draw);
  return CX_PICK_OK;
}

static inline float logprob_of(const struct vocabulary *v, uint32_t id, double log_mass) {
  const double logprob = (double)v->logits[id] - (double)v->logits[v->best] - log_mass;
  return logprob < (double)-FLT_MAX ? -FLT_MAX : (float)logprob;
}

/* The n first tokens of the order; returns how many: n, or the vocabulary where that is less. */
static uint32_t top_tokens(const struct vocabulary *v, uint32_t n, uint32_t *tokens) {
  const uint32_t n_found = n == 0 ? 0 : gather(v, n < v->n ? cut_top_k(v, n) : keep_all);
  for (uint32_t i = 0; i < n_found; i++) { /* insertion sort, largest key first: n is at most CX_MAX_TOP */
    const uint64_t key = v->keys[i];
    uint32_t at = i;
    for (; at > 0 && v->keys[at - 1] < key; at--) v->keys[at] = v->keys[at - 1];
    v->keys[at] = key;
  }
  for (uint32_t i = 0; i < n_found; i++) tokens[i] = unpack(v->keys[i]).id;
  return n_found;
}

/* log-softmax: logit - largest - log(sum of exp(logit - largest)), the sum as every mass here is summed. */
void cx_score(const float *logits, uint32_t vocab, uint32_t picked, void *scratch, struct cx_logprobs *logprobs) {
  struct vocabulary v = open_vocabulary(logits, vocab, scratch);
  scan(&v);
  const double log_mass = log(mass(&v, 1.0f, keep_all));
  if (logprobs->token == CX_PICKED_TOKEN) logprobs->token = picked;
  logprobs->logprob = logprob_of(&v, logprobs->token, log_mass);
  logprobs->n_top = top_tokens(&v, logprobs->n_top, logprobs->top_tokens);
  for (uint32_t i = 0; i < logprobs->n_top; i++) logprobs->top_logprobs[i] = logprob_of(&v, logprobs->top_tokens[i], log_mass);
}
