// Values of a run's stored config, for pages that are made without the option list.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "core/config/config_document.h"

namespace tailrace {

// The tree of config.yaml's text; empty where the text cannot be read.
ConfigNode read_config_text(const std::string& text);

// The value of a dotted key; empty where there is none.
std::string config_value(const ConfigNode& root, std::string_view key);

inline constexpr const char* kJudgedByReward = "rewards";

// A sentence about a group without a signal says that these are equal: kJudgedByReward, or "values
// of correct" (algo.filter_metric).
std::string judged_values(const ConfigNode& root);

}  // namespace tailrace
