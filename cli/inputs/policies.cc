#include "cli/inputs/policies.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/named_file.h"
#include "cli/config/stages.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/generate.h"
#include "core/model/parameter_files.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// A key that names a teacher, and the name.
struct NamedTeacher {
  std::string key = {}, name = {};
};

std::vector<NamedTeacher> named_in_stages(const RunOptions& o) {
  std::vector<NamedTeacher> named;
  for (const RunStage& stage : stages_of(o))
    if (const auto* distill = std::get_if<DistillStageOptions>(&stage.work))
      named.push_back({stage.key("policy"), distill->policy});
  return named;
}

// The one of the steps; null: there is none.
const PolicySection* find_teacher(const RunOptions& o) {
  const auto at = std::ranges::find(o.policies, o.algo.distill.policy, &PolicySection::name);
  return at == o.policies.end() ? nullptr : &*at;
}

void require_policy(const RunOptions& o, const NamedTeacher& teacher) {
  if (std::ranges::find(o.policies, teacher.name, &PolicySection::name) != o.policies.end()) return;
  if (teacher.name.empty())
    throw UserError::at(teacher.key,
                        "is missing; it names the teacher. Write policies: [{{name: teacher, "
                        "model: DIR}}], and its name here.");
  std::vector<std::string> names;
  for (const PolicySection& policy : o.policies) names.push_back(policy.name);
  throw UserError::at(
      teacher.key, "is {}, and {}.", teacher.name,
      names.empty()
          ? "there are no `policies`. Write policies: [{name: " + teacher.name + ", model: DIR}]"
          : "`policies` has " + join_texts(names, ", "));
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
  if (o.scheduler.mode.hand_over == scheduler::HandOverBy::kGroups)
    refuse("scheduler.hand_over", "groups", "step");
}

std::string key_of(const PolicySection& policy) {
  return fmt::format("policies.{}.model", policy.name);
}
std::string url_key_of(const PolicySection& policy) {
  return fmt::format("policies.{}.url", policy.name);
}

// A folder, or a server.
void validate_place(const PolicySection& policy) {
  if (policy.model.empty() == policy.url.empty())
    throw UserError::at(key_of(policy), "{}. Give one of them.",
                        policy.url.empty() ? "and url are both missing" : "and url are both given");
  if (policy.url.empty()) {
    for (const auto& [key, value] :
         {std::pair{"served_as", &policy.served_as}, {"key_env", &policy.key_env}})
      if (!value->empty())
        throw UserError::at(fmt::format("policies.{}.{}", policy.name, key),
                            "is {}, and the policy is behind no URL. Remove it, or give url.",
                            *value);
    return;
  }
  if (const auto url = http::parse_url(policy.url); !url)
    throw UserError::at(url_key_of(policy), "is wrong: {}.", url.failure().message);
  if (!policy.key_env.empty() && std::getenv(policy.key_env.c_str()) == nullptr)
    throw UserError::at(fmt::format("policies.{}.key_env", policy.name),
                        "is {}, and there is no such environment variable.", policy.key_env);
}

}  // namespace

void validate_policies(const RunOptions& o) {
  const std::string& named = o.algo.distill.policy;
  std::vector<NamedTeacher> teachers = named_in_stages(o);
  if (!named.empty()) teachers.push_back({"algo.distill.policy", named});
  for (const NamedTeacher& teacher : teachers) require_policy(o, teacher);
  for (const PolicySection& policy : o.policies) {
    if (std::ranges::find(teachers, policy.name, &NamedTeacher::name) != teachers.end()) continue;
    throw UserError::at(fmt::format("policies.{}.name", policy.name),
                        "is named by no key, and would only take memory. Name it in "
                        "algo.distill.policy or distill.policy, or remove it.");
  }
  for (const PolicySection& policy : o.policies) validate_place(policy);
  for (const NamedTeacher& teacher : named_in_stages(o))
    for (const PolicySection& policy : o.policies)
      if (policy.name == teacher.name && policy.model.empty())
        throw UserError::at(teacher.key,
                            "is {}, which is behind an URL, and a stage packs its teacher's "
                            "weights itself so far. Give policies.{}.model.",
                            teacher.name, teacher.name);
  if (named.empty()) return;
  const PolicySection& teacher = *find_teacher(o);
  validate_loss(o);
  if (!teacher.url.empty() && o.rollout.sampling.temperature != 1)
    throw UserError::at("rollout.sampling.temperature",
                        "is {}, and policies.{} is behind an URL: such servers score at a "
                        "temperature of 1. Use 1, or a folder (model).",
                        o.rollout.sampling.temperature, named);
  if (!o.run.listen.empty() && teacher.url.empty())
    throw UserError::at("run.listen",
                        "is {}, and algo.distill.policy is {}: the weights of a teacher lie in "
                        "files of this machine, and workers that join see none of them so far. "
                        "Leave run.listen out, or have a server score (policies.{}.url).",
                        o.run.listen, named, named);
  if (o.algo.sampling_mask == SamplingMask::kKeep)
    throw UserError::at("algo.sampling_mask",
                        "is keep, and algo.distill.policy is {}, which scores the whole "
                        "distribution and not what was kept of it. Try none.",
                        named);
  if (o.scheduler.replace_zero_signal)
    throw UserError::at("scheduler.replace_zero_signal",
                        "is true, and algo.distill.policy is {}, which has something to say of "
                        "each token: no group is without a signal. Use false.",
                        named);
  // As what samples keeps of its draws: half of what a message holds.
  if (const int64_t context = o.rollout.engine.max_context_tokens;
      needs_support(o.algo.distill.kind) && o.algo.distill.top_k > kMaxKeptIds / 2 / context)
    throw UserError::at("algo.distill.top_k",
                        "is {}, and a sample of {} tokens (rollout.max_context_tokens) could not "
                        "travel with as many for each. Try {}.",
                        o.algo.distill.top_k, context,
                        std::max<int64_t>(1, kMaxKeptIds / 2 / context));
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

std::vector<FrozenModel> frozen_models(const RunOptions& o, const ModelConfig& policy) {
  std::vector<FrozenModel> models;
  for (const PolicySection& teacher : o.policies) {
    if (teacher.model.empty()) continue;  // a server has it
    FrozenModel& planned =
        models.emplace_back(FrozenModel{.name = teacher.name, .dir = teacher.model});
    planned.model = read_named(key_of(teacher), [&] { return read_model_config(teacher.model); });
    if (planned.model.num_ids() != policy.num_ids())
      throw UserError::at(key_of(teacher),
                          "is {}, a model of {} ids, and the policy has {}: a teacher scores the "
                          "very ids of the policy. Take one with the same vocabulary.",
                          teacher.model, planned.model.num_ids(), policy.num_ids());
    if (const int64_t context = o.rollout.engine.max_context_tokens;
        planned.model.max_positions < context)
      throw UserError::at(key_of(teacher),
                          "is {}, which has {} positions, and contexts have up to {} tokens "
                          "(rollout.max_context_tokens).",
                          teacher.model, planned.model.max_positions, context);
  }
  return models;
}

std::optional<PlannedTeacher> teacher_of(const RunOptions& o, const ModelConfig& policy) {
  if (!o.algo.distill.has_teacher()) return std::nullopt;
  for (FrozenModel& model : frozen_models(o, policy)) {
    if (model.name != o.algo.distill.policy) continue;
    PlannedTeacher teacher{.model = std::move(model)};
    if (needs_support(o.algo.distill.kind))
      teacher.top_k = std::min(o.algo.distill.top_k, policy.num_ids());
    return teacher;
  }
  return std::nullopt;
}

std::vector<FrozenModel> teachers_of_stages(const RunOptions& o, const ModelConfig& policy) {
  const std::vector<NamedTeacher> named = named_in_stages(o);
  if (named.empty()) return {};
  std::vector<FrozenModel> models = frozen_models(o, policy);
  std::erase_if(models, [&](const FrozenModel& model) {
    return std::ranges::find(named, model.name, &NamedTeacher::name) == named.end();
  });
  return models;
}

void require_teacher_vocabulary(const RunOptions& o, const fs::path& tokenizer) {
  if (o.policies.empty()) return;
  const auto ours = text::load_tokenizer(tokenizer);
  for (const PolicySection& teacher : o.policies) {
    if (teacher.model.empty()) continue;
    const auto theirs =
        read_named(key_of(teacher), [&] { return text::load_tokenizer(teacher.model); });
    const auto refuse = [&](const std::string& what) {
      throw UserError::at(key_of(teacher),
                          "is {}, with another vocabulary than the policy: {}. A teacher scores "
                          "the very ids of the policy.",
                          teacher.model, what);
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
}

std::optional<RemotePolicy> remote_teacher_of(const RunOptions& o, const ModelConfig& policy) {
  const PolicySection* teacher = find_teacher(o);
  if (teacher == nullptr || teacher->url.empty()) return std::nullopt;
  const char* key = teacher->key_env.empty() ? nullptr : std::getenv(teacher->key_env.c_str());
  return RemotePolicy{.name = teacher->name,
                      .url = http::parse_url(teacher->url).value(),
                      .served_as = teacher->served_as,
                      .key = key == nullptr ? "" : key,
                      .top_k = needs_support(o.algo.distill.kind)
                                   ? std::min(o.algo.distill.top_k, policy.num_ids())
                                   : 0,
                      .at_once = teacher->at_once};
}

void try_remote_teacher(const RunOptions& o, const ModelConfig& policy, const fs::path& tokenizer) {
  const auto teacher = remote_teacher_of(o, policy);
  if (!teacher) return;
  const auto refuse = [&](const std::string& why) {
    throw UserError::at(fmt::format("policies.{}.url", teacher->name), "is {}: {}",
                        teacher->url.text(), why);
  };
  constexpr int64_t kTried = 64;
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < std::min(kTried, policy.num_ids()); ++i)
    ids.push_back(static_cast<TokenId>(i * policy.num_ids() / std::min(kTried, policy.num_ids())));
  nlohmann::json body = {{"prompt", ids},
                         {"max_tokens", 0},
                         {"echo", true},
                         {"temperature", 1.0},
                         {"logprobs", std::max<int64_t>(teacher->top_k, 1)}};
  if (!teacher->served_as.empty()) body["model"] = teacher->served_as;
  const auto posted = http::post_json(teacher->url, "/completions", json_text(body),
                                      {.wait = std::chrono::seconds(60), .bearer = teacher->key});
  if (!posted) refuse(posted.failure().message);
  if (posted.value().status != 200)
    refuse(
        fmt::format("it does not score ids without sampling (echo, max_tokens 0, logprobs {}): "
                    "status {}, {}",
                    std::max<int64_t>(teacher->top_k, 1), posted.value().status,
                    printable(posted.value().body.substr(0, 300))));
  const auto answer = parse_json_row(posted.value().body);
  if (!answer) refuse("its answer is " + answer.failure().message);
  std::vector<std::string> words;
  try {
    words = answer.value()
                .at("choices")
                .at(0)
                .at("logprobs")
                .at("tokens")
                .get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    refuse("its answer has no logprobs");
  }
  if (words.size() < ids.size())
    refuse(fmt::format("it has scored {} of {} ids", words.size(), ids.size()));
  if (!fs::exists(tokenizer / "tokenizer.json")) return;
  const auto ours = text::load_tokenizer(tokenizer);
  for (size_t i = 0; i < ids.size(); ++i) {
    // A part of a character is written in many ways, and special tokens may be left out.
    const std::string word = ours->bytes_of(ids[i]);
    const bool is_plain = std::ranges::all_of(word, [](char c) { return c > ' ' && c < 127; });
    if (is_plain && !word.empty() && !ours->is_special(ids[i]) && !words[i].empty() &&
        words[i].find(word) == std::string::npos)
      refuse(
          fmt::format("it has another vocabulary than the policy: id {} is \"{}\" there, and "
                      "\"{}\" here",
                      ids[i], printable(words[i]), word));
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
