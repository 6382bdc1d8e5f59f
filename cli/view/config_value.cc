#include "cli/view/config_value.h"

#include <algorithm>

#include "core/base/error.h"

namespace tailrace {

ConfigNode read_config_text(const std::string& text) {
  try {
    return parse_config(text, "config.yaml", {});
  } catch (const UserError&) {
    // The report shows the text all the same.
    return {};
  }
}

std::string config_value(const ConfigNode& root, std::string_view key) {
  const ConfigNode* node = &root;
  while (node != nullptr && !key.empty()) {
    const size_t dot = std::min(key.find('.'), key.size());
    node = node->find(key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return node == nullptr ? "" : node->text;
}

std::string judged_values(const ConfigNode& root) {
  const std::string metric = config_value(root, "algo.filter_metric");
  return metric.empty() || metric == "reward" ? kJudgedByReward : "values of " + metric;
}

}  // namespace tailrace
