// A page of a run in a browser, on the loopback interface: curves, samples, health, waits and
// workers, as they come. It reads what the run writes; the run does not know of it.
//
//   GET /?key=K         the page, whole: it loads nothing else
//   GET /events?key=K   server-sent events (live_feed.h)
//   GET /metrics?key=K  the text format of Prometheus (prometheus.h)
//
// A scraper may give the key as "Authorization: Bearer K". Without the key all is 403: every
// process of this machine reaches the port, and samples may be private.
//
// Thread: the owner's, beside the server's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/time.h"

namespace tailrace {

struct LivePageOptions {
  uint16_t port = 0;  // 0: any that is free
  std::string key;    // empty: a new one
};

class LivePage {
 public:
  static constexpr size_t kMostReaders = 32;  // of events, at once; another one gets 503

  // `run`: its directory as a person names it. Throws UserError where it has no journal, or the
  // port cannot be had.
  LivePage(const std::string& run, const LivePageOptions& options);
  ~LivePage();
  LivePage(const LivePage&) = delete;

  std::string url() const;  // with the key
  uint16_t port() const;

  // Answers what was asked, and tells all readers what is new. Where nobody reads, nothing of the
  // run is looked at. Wants to be called a few times a second.
  void step(Time now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
