// The part of a run for a worker of another host, as it shares no folder with it: the config, the
// shape of the model, and for a rollout worker the tokenizer and the datasets; plugin libraries and
// the files of reward programs where the run has them; beside an adapter the weights of its base.
// Checkpoints, trajectories, logs and keys never travel.
//
// The worker puts the files into a folder of its own that looks like a run's (RunPaths), and loads
// the config with the keys of paths turned to them. Datasets and the like are named by the digests
// of RUN/inputs.json, so a file that is in the worker's cache is not sent again, whatever run it
// was sent for.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/gate/file_shelf.h"
#include "core/hosts/bundle_listing.h"
#include "core/run/run_directory.h"

namespace tailrace {

// The run's side.
class Bundle {
 public:
  // Throws UserError: a file that is missing, or that has changed since inputs.json noted it.
  Bundle(const RunPaths& paths, const ResolvedRun& run);

  // Writes RUN/bundle/ROLE.json for both roles. Throws UserError.
  void write_listings() const;
  // Under the names "bundle/ROLE.json", "files/PLACE" and "weights/FILE".
  std::optional<SharedFile> find(const std::string& name) const;
  // Whether it is for workers of this role.
  bool is_for(Role role, const std::string& name) const;

 private:
  struct Item {
    BundleFile file;
    std::filesystem::path path;
    std::string key = {};       // empty: no key names it
    std::string input = {};     // what inputs.json calls it; empty: `key`
    bool rollout_only = false;  // rewards are given without it
  };
  void add(Item item);
  BundleListing listing(Role role) const;

  RunPaths paths_;
  std::map<std::string, std::string> noted_;  // inputs.json
  std::vector<Item> items_;
};

}  // namespace tailrace
