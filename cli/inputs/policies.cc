#include "cli/inputs/policies.h"

#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/config/named_file.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/model/parameter_files.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const PolicySection* find_teacher(const RunOptions& o) {
  const auto at = std::ranges::find(o.policies, o.algo.distill.policy, &PolicySection::name);
  return at == o.policies.end() ? nullptr : &*at;
}

// A loss that is none of advantages has its updates to itself.
void validate_loss(const RunOptions& o) {
  const DistillOptions& distill = o.algo.distill;
  if (distill.kind == DistillLoss::kPolicyGradient) return;
  const std::string_view loss = name_of(distill.kind);
  if (distill.rewards)
    throw UserError::at("algo.distill.rewards",
                        "is true, and algo.distill.loss is {}, which learns from the teacher "
                        "alone. Write rewards: false, or loss: policy_gradient.",
                        loss);
  if (needs_support(distill.kind) && distill.support == SupportOf::kStudent)
    throw UserError::at("algo.distill.support",
                        "is student, and what samples keeps no likeliest tokens so far. Use "
                        "teacher.");
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view instead) {
    throw UserError::at(key, "is {}, and algo.distill.loss is {}, which has no advantages. Try {}.",
                        value, loss, instead);
  };
  if (needs_critic(o.algo.advantage))
    refuse("algo.advantage", name_of(o.algo.advantage), "group_mean");
  if (o.algo.kl.coef != 0) refuse("algo.kl.coef", fmt::to_string(o.algo.kl.coef), "0");
  if (o.algo.entropy_coef != 0)
    refuse("algo.entropy_coef", fmt::to_string(o.algo.entropy_coef), "0");
  if (o.algo.sampling_mask == SamplingMask::kKeep) refuse("algo.sampling_mask", "keep", "none");
  if (o.scheduler.mode.hand_over == scheduler::HandOverBy::kGroups)
    refuse("scheduler.hand_over", "groups", "step");
}

std::string key_of(const PolicySection& policy) {
  return fmt::format("policies.{}.model", policy.name);
}

}  // namespace

void validate_policies(const RunOptions& o) {
  const std::string& named = o.algo.distill.policy;
  if (!named.empty() && find_teacher(o) == nullptr) {
    std::vector<std::string> names;
    for (const PolicySection& policy : o.policies) names.push_back(policy.name);
    throw UserError::at(
        "algo.distill.policy", "is {}, and {}.", named,
        names.empty()
            ? "there are no `policies`. Write policies: [{name: " + named + ", model: DIR}]"
            : "`policies` has " + join_texts(names, ", "));
  }
  for (const PolicySection& policy : o.policies) {
    if (policy.name == named) continue;
    throw UserError::at(fmt::format("policies.{}.name", policy.name),
                        "is named by no key, and would only take memory. Name it in "
                        "algo.distill.policy, or remove it.");
  }
  if (named.empty()) return;
  validate_loss(o);
  if (!o.run.listen.empty())
    throw UserError::at("run.listen",
                        "is {}, and algo.distill.policy is {}: the weights of a teacher lie in "
                        "files of this machine, and workers that join see none of them so far. "
                        "Leave run.listen out.",
                        o.run.listen, named);
  if (o.run.colocate)
    throw UserError::at("run.colocate",
                        "is true, and algo.distill.policy is {}: the teacher is not in what they "
                        "share so far. Try run.colocate=false.",
                        named);
  if (o.algo.router_replay == RouterReplay::kReplay)
    throw UserError::at("algo.router_replay",
                        "is replay, and algo.distill.policy is {}, which chooses experts of its "
                        "own. Try off.",
                        named);
}

std::optional<PlannedPolicy> teacher_of(const RunOptions& o, const ModelConfig& policy) {
  const PolicySection* teacher = find_teacher(o);
  if (teacher == nullptr) return std::nullopt;
  PlannedPolicy planned{.name = teacher->name, .dir = teacher->model};
  if (needs_support(o.algo.distill.kind))
    planned.top_k = std::min(o.algo.distill.top_k, policy.num_ids());
  planned.model = read_named(key_of(*teacher), [&] { return read_model_config(teacher->model); });
  if (planned.model.num_ids() != policy.num_ids())
    throw UserError::at(key_of(*teacher),
                        "is {}, a model of {} ids, and the policy has {}: a teacher scores the "
                        "very ids that were sampled. Take one with the same vocabulary.",
                        teacher->model, planned.model.num_ids(), policy.num_ids());
  if (const int64_t context = o.rollout.engine.max_context_tokens;
      planned.model.max_positions < context)
    throw UserError::at(key_of(*teacher),
                        "is {}, which has {} positions, and contexts have up to {} tokens "
                        "(rollout.max_context_tokens).",
                        teacher->model, planned.model.max_positions, context);
  return planned;
}

void require_teacher_vocabulary(const RunOptions& o, const fs::path& tokenizer) {
  const PolicySection* teacher = find_teacher(o);
  if (teacher == nullptr) return;
  const auto ours = text::load_tokenizer(tokenizer);
  const auto theirs =
      read_named(key_of(*teacher), [&] { return text::load_tokenizer(teacher->model); });
  const auto refuse = [&](const std::string& what) {
    throw UserError::at(key_of(*teacher),
                        "is {}, with another vocabulary than the policy: {}. A teacher scores the "
                        "very ids that were sampled.",
                        teacher->model, what);
  };
  if (ours->vocab_size() != theirs->vocab_size())
    refuse(fmt::format("{} tokens, and {}", theirs->vocab_size(), ours->vocab_size()));
  for (int64_t id = 0; id < ours->vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (ours->bytes_of(token) != theirs->bytes_of(token) ||
        ours->is_special(token) != theirs->is_special(token))
      refuse(fmt::format("id {} is \"{}\" there, and \"{}\" here", id, theirs->bytes_of(token),
                         ours->bytes_of(token)));
  }
}

std::vector<fs::path> model_files(const fs::path& folder) {
  std::vector<fs::path> files;
  if (folder.empty()) return files;
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja", "model.safetensors.index.json"})
    if (fs::exists(folder / name)) files.push_back(folder / name);
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  return files;
}

}  // namespace tailrace
