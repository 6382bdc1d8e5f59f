// The facts of a library about itself, and what its environments do: data, asked once by a process
// that has loaded it, and kept for all others.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"
#include "sandbox/environment.h"
#include "sandbox/plugin/message.h"
#include "sandbox/settings_schema.h"

namespace tailrace::sandbox {

// The facts of an environment with these settings, as complete_settings() gives them.
struct KnownInfo {
  std::string name;
  EnvironmentSettings settings;
  EnvironmentInfo info;
};

struct LibraryFacts {
  std::string digest;  // of the file
  std::vector<Declaration> environments, rewards;
  std::vector<KnownInfo> infos;  // of those that were asked
};

void pack(Packer& packer, const std::vector<Declaration>& entries);
std::vector<Declaration> unpack_entries(Unpacker& unpacker);

nlohmann::ordered_json json_of(const LibraryFacts& facts);
// Throws UserError or nlohmann::json::exception for what json_of() did not write.
LibraryFacts facts_of_json(const nlohmann::json& json);

}  // namespace tailrace::sandbox
