/* The least library that a C compiler accepts: abi.h is C11, and a library needs no C++. */
#include "tailrace/abi.h"

const tr_library* tailrace_library_1(const tr_host* host) {
  static tr_library library;
  if (!TR_HAS(host, log)) return NULL;
  library.size = sizeof library;
  library.abi = TR_ABI;
  library.name = "in_c";
  library.version = "1.0";
  library.built_with = __VERSION__;
  return &library;
}
