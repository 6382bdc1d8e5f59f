/* Libraries that cannot be used: of another ABI (OTHER), that refuses (REFUSES), with no entry. */
#include "tailrace/abi.h"

#ifdef OTHER
static const tr_library library = {sizeof(tr_library), TR_ABI + 1, "other", "9", "c", 0, 0};
const tr_library* tailrace_library_1(const tr_host* host) {
  (void)host;
  return &library;
}
#endif
#ifdef REFUSES
const tr_library* tailrace_library_1(const tr_host* host) {
  const tr_text line = {"not on this machine", 19};
  host->log(host->self, 3, line);
  return 0;
}
#endif
int nothing = 1;
