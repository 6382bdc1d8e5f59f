// Source of the files of a weight version.
//
// Thread: the one that stages; one call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/weights/version_folder.h"

namespace tailrace {

struct WeightFetch {
  std::string manifest;  // its file name
  Digest root;
  // When it is requested nobody wants them any more, and the fetch ends soon with any result.
  std::stop_token stop = {};
  // Bytes fetched, of the total to come; less than before where another source begins anew.
  std::function<void(int64_t bytes, int64_t total)> on_progress = [](int64_t, int64_t) {};
};

struct FetchedWeights {
  std::filesystem::path manifest;  // with the payload beside it
  MetricList metrics = {};         // fetch_ms, process_ms, bytes_... (docs/metrics.md)
};

// Makes manifest and payload files of this machine, side by side. Proves nothing: who asked does
// that. A Failure is the source's, and the caller is at no fault.
using FetchWeights = std::function<Result<FetchedWeights>(const WeightFetch&)>;

// Fetches files that lie in `folder` already.
inline FetchWeights weights_in(std::filesystem::path folder) {
  return [folder = std::move(folder)](const WeightFetch& fetch) -> Result<FetchedWeights> {
    const std::filesystem::path manifest = folder / fetch.manifest;
    std::error_code ignored;
    for (const auto& file : {manifest, folder / payload_name(fetch.manifest)})
      if (!std::filesystem::exists(file, ignored))
        return Failure{fmt::format("{} is not there: the version was let go", file.string())};
    return FetchedWeights{.manifest = manifest};
  };
}

}  // namespace tailrace
