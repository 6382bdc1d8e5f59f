// The parts of `bench gateway`. Each checks what comes before it reports.
#pragma once

#include <string>

#include "bench/report/report.h"

namespace tailrace {

struct GatewayBenchOptions {
  std::string model = "tests/data/models/stories260K";
  std::string tokenizer = "tests/data/tokenizers/minimind";
  int calls = 2000;     // of each row
  int sessions = 1000;  // at once
  int turns = 4;        // of each
  int idle = 131072;    // connections, at most
  int runs = 20;        // of cancelled calls; half as many of streams
  int threads = 2;      // of the engine
};

// What the gateway adds to a call: one client at a time and 64, over connections that are kept and
// fresh ones. The floor is an echo of as many bytes.
void measure_overhead(const GatewayBenchOptions& options, Report& report);
// Conversations of attempts with keys, all at once.
void measure_sessions(const GatewayBenchOptions& options, Report& report);
// Connections without a request. Forks; before it there is no other thread.
void measure_idle(const GatewayBenchOptions& options, Report& report);
// How long after a client has hung up its tokens leave the KV cache.
void measure_cancel(const GatewayBenchOptions& options, Report& report);
// Tokens a second of streams, against the engine alone.
void measure_streams(const GatewayBenchOptions& options, Report& report);

}  // namespace tailrace
