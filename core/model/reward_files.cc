#include "core/model/reward_files.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/model/reward_head.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

// pad_token_id in the text of a JSON object; -1: none.
int64_t padding_in(const std::string& text) {
  if (text.empty()) return -1;
  const auto json = parse_ordered_json(text);
  const auto found = json.find("pad_token_id");
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

}  // namespace

int64_t reward_padding(const ModelForm& policy, const ModelConfig& reward) {
  for (const std::string& text : {policy.config, policy.generation}) {
    if (text.empty()) continue;
    if (const int64_t padding = padding_in(text); padding >= 0) return padding;
  }
  return padding_of(reward.bos_token, reward.eos_tokens);
}

ModelForm reward_model_form(const ModelForm& policy, const ModelConfig& reward) {
  TR_CHECK(is_reward_model(reward), "{} has no score", reward.architecture);
  ModelForm form = policy;
  for (ModelForm::File& file : form.files)
    std::erase_if(file.tensors, [](const auto& tensor) { return tensor.name == kHeadName; });
  std::erase_if(form.files, [](const ModelForm::File& file) { return file.tensors.empty(); });
  if (policy.config.empty()) return form;
  auto json = parse_ordered_json(policy.config);
  json["architectures"] = nlohmann::ordered_json::array({reward.architecture});
  json.erase("num_labels");
  json["id2label"] = {{"0", "LABEL_0"}};
  json["label2id"] = {{"LABEL_0", 0}};
  const int64_t padding = reward_padding(policy, reward);
  if (padding >= 0) json["pad_token_id"] = padding;
  form.config = json_text(json, 2) + "\n";
  return form;
}

void copy_reward_body(const Parameters& policy, Parameters& reward) {
  for (const ParameterInfo& tensor : reward.layout().entries()) {
    if (tensor.name == kScoreName)
      std::ranges::fill(reward.values(tensor.name), 0.0f);
    else
      std::ranges::copy(policy.values(tensor.name), reward.values(tensor.name).begin());
  }
}

}  // namespace tailrace
