// What the run and a worker of another host call the files of a bundle (cli/roles/bundle.h), and
// the listing of them that travels first.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/gate/file_shelf.h"

namespace tailrace {

// What a name begins with: of a listing ("bundle/rollout.json"), of a file of it, and of a file of
// a weight version.
inline constexpr std::string_view kBundleListings = "bundle/", kBundleFiles = "files/",
                                  kWeightFiles = "weights/";

struct BundleFile {
  std::string place;   // below the folder of the worker: "tokenizer/tokenizer.json"
  Digest digest = {};  // digest_of() its first `bytes`
  int64_t bytes = 0;
  // The header alone of a file of weights travels; the rest is a hole (FileFacts::apparent_bytes).
  bool is_header = false;
};

struct BundleListing {
  std::vector<BundleFile> files;
  // Keys of the config that name a file, each with its place: "env.dataset", "inputs/1-a.jsonl".
  std::vector<std::pair<std::string, std::string>> keys;
};
std::string to_json(const BundleListing& listing);
// A Failure for what is no such text, and for places that lead out of the folder.
Result<BundleListing> read_listing(const std::filesystem::path& file);

// A file of a version below RUN/weights, by what a worker calls it: a manifest, a payload, or the
// next file on the way to it (core/weights/way.h), which is made when it is asked for.
std::optional<SharedFile> find_weight_file(const std::filesystem::path& folder,
                                           const std::string& file);

}  // namespace tailrace
