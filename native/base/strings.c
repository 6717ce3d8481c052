/* Strings one behind the other, as files of models hold their vocabularies: each a little-endian u64 of its length, then its bytes.
 *
 * Knows no format beyond that, and nothing of text: a string is bytes. Every length is checked against the data, which may be
 * hostile. The calls are declared in caldrix.h.
 */
#include <string.h>

#include "caldrix.h"

enum { LENGTH_BYTES = 8 };

static uint64_t length_at(const unsigned char *p) {
  uint64_t length = 0;
  for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)p[i] << 8 * i;
  return length;
}

void cx_strings_walk(const void *data, uint64_t size, struct cx_strings *walk, char *out, uint64_t capacity) {
  const unsigned char *bytes = data;
  uint64_t at = walk->at, used = 0, n = 0;
  while (n < walk->n) {
    if (at > size || size - at < LENGTH_BYTES) break;
    uint64_t length = length_at(bytes + at), start = at + LENGTH_BYTES;
    if (length > size - start) break;
    if (out != NULL) {
      if (length >= capacity - used || memchr(bytes + start, 0, length) != NULL) break;
      memcpy(out + used, bytes + start, length);
      used += length;
      out[used++] = 0;
    }
    at = start + length;
    n++;
  }
  walk->at = at;
  walk->n = n;
  walk->n_bytes = used;
}
