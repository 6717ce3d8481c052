/* Packs bf16 values as planes. Own: the choice of each block's base and of the values that are listed; the layout and the way back
 * are planes.h.
 */
#include "quants.h"

#include "caldrix.h"

#define WINDOW 15 /* codes 0 to 14 */

/* A block's values apart: the bytes of planes.h and the exponents, both in the order of elements. */
struct apart {
  uint8_t tops[256];
  uint8_t exponents[256];
};

static void take_apart(const uint8_t *bf16, struct apart *apart) {
  uint16_t words[256];
  memcpy(words, bf16, sizeof words);
  for (uint32_t i = 0; i < 256; i++) {
    apart->tops[i] = (uint8_t)((words[i] >> 8 & 0x80) | (words[i] & 0x7f));
    apart->exponents[i] = (uint8_t)(words[i] >> 7);
  }
}

/* How a block is packed: values whose exponent is neither 0 nor in base - 14 .. base are listed. */
struct choice {
  uint32_t base, n_odd;
};

/* The window that leaves the fewest out, of these the lowest. */
static struct choice choose_base(const struct apart *apart) {
  uint8_t most = 0, least = 255; /* least: of exponent - 1, so that 0 wraps around to the most */
  for (uint32_t i = 0; i < 256; i++) {
    const uint8_t less = (uint8_t)(apart->exponents[i] - 1);
    most = apart->exponents[i] > most ? apart->exponents[i] : most;
    least = less < least ? less : least;
  }
  if (most < least + 1 + WINDOW) return (struct choice){most, 0};
  uint16_t counts[256] = {0};
  for (uint32_t i = 0; i < 256; i++) counts[apart->exponents[i]]++;
  const uint32_t n_values = 256u - counts[0];
  struct choice best = {0, n_values};
  uint32_t inside = 0;
  for (uint32_t base = least + 1u; base <= most; base++) {
    inside += counts[base];
    if (base >= least + 1u + WINDOW) inside -= counts[base - WINDOW];
    if (n_values - inside < best.n_odd) best = (struct choice){base, n_values - inside};
  }
  return best;
}

/* From the order of elements to that of a group's bytes, which moves them by fours. */
static void order_group(const uint8_t *elements, uint8_t *bytes) {
  for (uint32_t s = 0; s < 32; s += 4) memcpy(bytes + s, elements + cx_planes_element(s), 4);
}

static void pack_block(const struct apart *apart, struct choice choice, struct cx_planes *block) {
  uint8_t codes[256];
  for (uint32_t i = 0; i < 256; i++) {
    const uint8_t code = (uint8_t)(choice.base - apart->exponents[i]);
    codes[i] = code < WINDOW ? code : 15;
  }
  for (uint32_t g = 0; g < 8; g++) {
    uint8_t ordered[32];
    order_group(apart->tops + 32 * g, block->tops + 32 * g);
    order_group(codes + 32 * g, ordered);
    for (uint32_t i = 0; i < 16; i++) block->codes[16 * g + i] = (uint8_t)(ordered[i] | ordered[i + 16] << 4);
  }
  block->base = (uint8_t)choice.base;
  block->n_odd = 0;
  memset(block->odd_at, 0, sizeof block->odd_at);
  memset(block->odd_exponent, 0, sizeof block->odd_exponent);
  for (uint32_t at = 0; at < 256 && block->n_odd < choice.n_odd; at++) {
    const uint32_t i = at / 32 * 32 + cx_planes_element(at % 32);
    if (codes[i] != 15 || apart->exponents[i] == 0) continue;
    block->odd_at[block->n_odd] = (uint8_t)at;
    block->odd_exponent[block->n_odd++] = apart->exponents[i];
  }
}

int cx_planes_pack(const void *bf16, uint64_t n_blocks, void *planes) {
  struct apart apart;
  for (uint64_t b = 0; b < n_blocks; b++) {
    take_apart((const uint8_t *)bf16 + 512 * b, &apart);
    const struct choice choice = choose_base(&apart);
    if (choice.n_odd > CX_PLANES_ODD) return CX_EINVAL;
    pack_block(&apart, choice, (struct cx_planes *)planes + b);
  }
  return CX_OK;
}
