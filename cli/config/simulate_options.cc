#include "cli/config/simulate_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr double kMaxRate = 1e12, kMaxSeconds = 1e8, kMaxSimulatedWorkers = 1e5;
constexpr std::string_view kHardwareList = "hardware", kPoolList = "pools";

OptionInfo simulated(std::string_view help, double min, double max) {
  return {.help = help, .min = min, .max = max};
}
OptionInfo simulated(std::string_view help) { return {.help = help}; }

template <class Item>
std::vector<std::string> names_in(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.push_back(item.name);
  return names;
}

void check_unique(std::string_view list, const std::vector<std::string>& names) {
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string key = join_key(item_key(list, names, i), "name");
    if (!is_item_name(names[i]))
      throw UserError::at(key, "is '{}'; a name is of letters, digits, _ and -. Try {}.", names[i],
                          i == 0 ? "a" : "b");
    if (const auto [first, is_new] = known.emplace(names[i], i); !is_new)
      throw UserError::at(key, "is {}, as that of {}[{}] is. Give each a name of its own.",
                          names[i], list, first->second);
  }
}

simulator::DecodeModel decode_model(const HardwareSection& hardware, const std::string& key) {
  simulator::DecodeModel model{.step = hardware.step_ms / 1000};
  if (hardware.kv_read_tokens_per_s > 0) model.context = 1 / hardware.kv_read_tokens_per_s;
  if (hardware.tokens_per_s == 0) {
    if (model.step > 0) return model;
    throw UserError::at(join_key(key, "tokens_per_s"),
                        "is 0, and step_ms is 0 too: decoding would take no time. Give one of "
                        "them.");
  }
  // Seconds of one token, when so many sequences decode.
  const double floor = model.step / static_cast<double>(hardware.at_sequences) +
                       static_cast<double>(hardware.at_context_tokens) * model.context;
  // A token takes step / n + sequence + tokens * context seconds where n sequences decode
  // (DecodeModel): what is left of the measured time is the share of the sequence itself.
  model.sequence = 1 / hardware.tokens_per_s - floor;
  // Both may be measured, and then differ by rounding.
  if (model.sequence < -0.01 * floor)
    throw UserError::at(
        join_key(key, "tokens_per_s"),
        "is {:g}, but step_ms ({:g}) and kv_read_tokens_per_s ({:g}) allow {} sequences of {} "
        "tokens {:.0f} tokens/s at most.\n       Try tokens_per_s: {:.0f}, or smaller step_ms and "
        "a larger kv_read_tokens_per_s.",
        hardware.tokens_per_s, hardware.step_ms, hardware.kv_read_tokens_per_s,
        hardware.at_sequences, hardware.at_context_tokens, 1 / floor, 0.9 / floor);
  model.sequence = std::max(0.0, model.sequence);
  return model;
}

// A name of the list, or none.
void check_hardware(const std::vector<HardwareSection>& all, std::string_view name,
                    std::string_view key) {
  const std::vector<std::string> names = names_in(all);
  if (name.empty() || std::ranges::find(names, name) != names.end()) return;
  if (names.empty())
    throw UserError::at(key,
                        "is {}, but hardware lists none.\n       Remove it, or list it: "
                        "hardware: [{{name: {}}}].",
                        name, name);
  const std::string nearest = nearest_name(std::string(name), names);
  throw UserError::at(key, "is {}, and hardware has {}. Try {}.", name, join_texts(names, ", "),
                      nearest.empty() ? names.front() : nearest);
}

}  // namespace

void HardwareSection::visit(OptionVisitor& v) {
  v.field(
      "name", name,
      {.help = "what rollout_hardware, trainer.hardware and pools name it by", .required = true});
  v.field("tokens_per_s", tokens_per_s,
          simulated("tokens that a worker decodes a second when at_sequences sequences of "
                    "at_context_tokens each decode together; 0: as many as step_ms and "
                    "kv_read_tokens_per_s allow",
                    0, kMaxRate));
  v.field("at_sequences", at_sequences, simulated("the sequences of tokens_per_s", 1, kMaxCount));
  v.field("at_context_tokens", at_context_tokens, simulated("their contexts, mean", 0, kMaxCount));
  v.field(
      "step_ms", step_ms,
      simulated("a decode step of one sequence with a short context: reading the weights", 0, 1e6));
  v.field("kv_read_tokens_per_s", kv_read_tokens_per_s,
          simulated("tokens of KV that decoding reads a second: memory bandwidth over the KV bytes "
                    "of a token; 0: reading them takes no time",
                    0, 1e15));
  v.field("prefill_tokens_per_s", prefill_tokens_per_s,
          simulated("prompt tokens that a worker reads a second; decoding stands still meanwhile; "
                    "0: no time",
                    0, kMaxRate));
  v.field("kv_tokens", kv_tokens,
          simulated("tokens that the KV cache of a worker holds; 0: any number", 0, 1e12));
  v.field("train_tokens_per_s", train_tokens_per_s,
          simulated("tokens, prompts included, that one worker of the trainer takes through "
                    "forward and backward a second; 0: no time",
                    0, kMaxRate));
  v.field("devices", devices, simulated("devices of one worker", 1, kMaxCount));
  v.field("price_per_hour", price_per_hour,
          simulated("of one device, in any currency; --price says it of all", 0, kMaxRate));
  v.field("memory_gib", memory_gib,
          simulated("memory of a device, as a process sees it: whether the run fits; 0: not said",
                    0, kMaxRate));
  v.field("memory_gb_per_s", memory_gb_per_s,
          simulated("bandwidth of its memory, as in its data sheet. With this and bf16_tflops the "
                    "keys above that are not given follow from the model; 0: not said",
                    0, kMaxRate));
  v.field("bf16_tflops", bf16_tflops,
          simulated("of its data sheet, dense; 0: not said", 0, kMaxRate));
  v.field("link_gb_per_s", link_gb_per_s,
          simulated("from the host to the device, in one direction: how long a version of the "
                    "weights takes, where weights.link_mbit is 0",
                    0, kMaxRate));
  v.field("memory_ratio", memory_ratio,
          simulated("share of memory_gb_per_s that decoding reaches", 0.01, 1));
  v.field("compute_ratio", compute_ratio,
          simulated("share of bf16_tflops that prefill and training reach", 0.01, 1));
}

void SimulatedPoolSection::visit(OptionVisitor& v) {
  v.field("name", name, {.help = "a pool of rollout.pools", .required = true});
  v.field("hardware", hardware, simulated("of its workers; empty: rollout_hardware"));
  v.field("workers", workers,
          simulated("how many are simulated; 0: as many as the pool has", 0, kMaxSimulatedWorkers));
}

void SimulatedEpisodesSection::visit(OptionVisitor& v) {
  v.field("from", from,
          {.help = "a run whose episodes are played again, with their lengths and times, or a "
                   "file of recorded ones; "
                   "empty: episodes are drawn as the keys below say",
           .path = true});
  v.field(
      "prompt_tokens", prompt_tokens,
      simulated("of each prompt; 0: 500, or half of rollout.max_context_tokens where that is less",
                0, kMaxSequenceTokens));
  v.field("response_tokens", response_tokens,
          simulated("sampled in an episode, all turns: the median of log-normal lengths; 0: a "
                    "fifth of their limit, or 1500 where there is none",
                    0, kMaxSequenceTokens));
  v.field("sigma_prompt", sigma_prompt,
          simulated("how far prompts differ: sigma of the logarithm of a prompt's median", 0, 10));
  v.field("sigma_response", sigma_response,
          simulated("how far the responses of one prompt differ: sigma of the logarithm", 0, 10));
  v.field("endless_ratio", endless_ratio,
          simulated("share of the responses that run to the limit", 0, 1));
  v.field("limit_tokens", limit_tokens,
          simulated("most tokens of a response; 0: what the run allows "
                    "(rollout.max_response_tokens, else what rollout.max_context_tokens leaves)",
                    0, kMaxSequenceTokens));
  v.field("turns", turns, simulated("of an episode; its tokens are divided among them", 1, 1e6));
  v.field("env_seconds", env_seconds,
          simulated("that the environment takes for a turn: the median", 0, kMaxSeconds));
  v.field("env_sigma", env_sigma, simulated("sigma of its logarithm", 0, 10));
  v.field("env_tokens", env_tokens,
          simulated("of the environment's answer to a turn", 0, kMaxSequenceTokens));
  v.field("reset_seconds", reset_seconds,
          simulated("before the first turn (a container that starts): the median", 0, kMaxSeconds));
  v.field("reset_sigma", reset_sigma, simulated("sigma of its logarithm", 0, 10));
  v.field("verify_seconds", verify_seconds,
          simulated("of a verification: the median; 0: the environment gives the reward", 0,
                    kMaxSeconds));
  v.field("verify_sigma", verify_sigma, simulated("sigma of its logarithm", 0, 10));
  v.field("success", success,
          simulated("share of the episodes with reward 1, the others have 0", 0, 1));
}

void SimulatedTrainerSection::visit(OptionVisitor& v) {
  v.field("hardware", hardware, simulated("one of hardware; empty: the first one"));
  v.field("workers", workers,
          simulated("workers of that hardware that train together, each a share of the tokens", 1,
                    kMaxSimulatedWorkers));
  v.field("step_seconds", step_seconds, simulated("of a step, whatever is in it", 0, kMaxSeconds));
  v.field("update_seconds", update_seconds,
          simulated("of the optimizer in one update; a step makes train.minibatches_per_step x "
                    "train.ppo_epochs of them",
                    0, kMaxSeconds));
  v.field("publish_seconds", publish_seconds,
          simulated("from the last update to when workers may fetch the version", 0, kMaxSeconds));
  v.field("save_seconds", save_seconds, simulated("of a checkpoint", 0, kMaxSeconds));
}

void SimulatedWeightsSection::visit(OptionVisitor& v) {
  v.field("payload_bytes", payload_bytes,
          simulated("of a version, as a worker fetches it; 0: the model's own (model.path), where "
                    "its config.json is there, else none",
                    0, kMaxExactInteger));
  v.field("fetch_seconds", fetch_seconds,
          simulated("that each worker takes besides: reading, proof, packing", 0, kMaxSeconds));
  v.field("link_mbit", link_mbit,
          simulated("rate of each worker's own link, in Mbit/s; 0: its transfer takes no time", 0,
                    kMaxRate));
  v.field("shared_link_mbit", shared_link_mbit,
          simulated("rate of the link that the workers of a pool share, one payload behind the "
                    "other; 0: the link_mbit of the pool's cluster, else they share none",
                    0, kMaxRate));
  v.field("switch_ms", switch_ms,
          simulated("that a worker stands still for new weights; behind it the KV of its "
                    "sequences is computed again",
                    0, 1e9));
}

void SimulatedFaultsSection::visit(OptionVisitor& v) {
  v.field("worker_mtbf_hours", worker_mtbf_hours,
          simulated("mean time between deaths of one rollout worker; 0: none dies", 0, kMaxRate));
  v.field("trainer_mtbf_hours", trainer_mtbf_hours,
          simulated("the same of the trainer as a whole", 0, kMaxRate));
  v.field("hang_mtbf_hours", hang_mtbf_hours,
          simulated("mean time between hangs of one rollout worker; 0: none hangs", 0, kMaxRate));
  v.field("noticed_seconds", noticed_seconds,
          simulated("from a death until the scheduler knows", 0, kMaxSeconds));
  v.field("restart_seconds", restart_seconds,
          simulated("from there until a new process is there", 0, kMaxSeconds));
  v.field("hang_seconds", hang_seconds, simulated("of a hang", 0, kMaxSeconds));
  v.field("env_failed", env_failed,
          simulated("chance that the environment of an episode fails", 0, 1));
  v.field("install_failed", install_failed,
          simulated("chance that a worker fails to install a version", 0, 1));
  v.field("broken_tasks", broken_tasks,
          simulated("share of a dataset's rows that nobody can play", 0, 1));
}

void SimulateSection::visit(OptionVisitor& v) {
  v.field("days", days, simulated("of virtual time at most", 1e-6, 1e4));
  v.field("steps", steps, simulated("at most; 0: run.steps", 0, kMaxCount));
  v.field("seed", seed, simulated("of all that is drawn", 0, kMaxExactInteger));
  v.list(
      "hardware", hardware,
      "what simulated workers compute on: a list; without it, one with these defaults, which are "
      "about an H100 with a dense policy of 8 B parameters in bfloat16");
  v.field("rollout_hardware", rollout_hardware, simulated("one of hardware; empty: the first one"));
  v.field("workers", workers,
          simulated("rollout workers that are simulated; 0: those of the run", 0,
                    kMaxSimulatedWorkers));
  v.field("reward_workers", reward_workers,
          simulated("the same of reward workers; 0: reward.workers", 0, kMaxSimulatedWorkers));
  v.list("pools", pools,
         "pools of the run (rollout.pools) that have hardware or a number of workers of their own "
         "here: a list");
  v.field("lockstep", lockstep,
          simulated("the episodes of a worker act in step: no environment answers before the "
                    "slowest one"));
  v.field("message_ms", message_ms,
          simulated("of a message between a worker and the scheduler", 0, 1e6));
  v.section("episodes", episodes, "the episodes that are simulated");
  v.section("trainer", trainer, "the trainer that is simulated");
  v.section("weights", weights, "how long new weights take to the workers");
  v.section("faults", faults, "what goes wrong");
}

void SimulateSection::validate() const {
  const std::vector<std::string> names = names_in(hardware);
  check_unique(kHardwareList, names);
  for (size_t i = 0; i < hardware.size(); ++i)
    decode_model(hardware[i], item_key(kHardwareList, names, i));
  check_hardware(hardware, rollout_hardware, "rollout_hardware");
  check_hardware(hardware, trainer.hardware, "trainer.hardware");
  const std::vector<std::string> own = names_in(pools);
  check_unique(kPoolList, own);
  for (size_t i = 0; i < pools.size(); ++i)
    check_hardware(hardware, pools[i].hardware, join_key(item_key(kPoolList, own, i), "hardware"));
  // A shorter time would give nothing but deaths after many hours of computing.
  constexpr double kLeastHours = 0.001;
  for (const auto& [key, hours] : {std::pair{"worker_mtbf_hours", faults.worker_mtbf_hours},
                                   std::pair{"trainer_mtbf_hours", faults.trainer_mtbf_hours},
                                   std::pair{"hang_mtbf_hours", faults.hang_mtbf_hours}})
    if (hours > 0 && hours < kLeastHours)
      throw UserError::at(join_key("faults", key),
                          "is {:g}, less than {} seconds. Try {}, or 0 for none.", hours,
                          3600 * kLeastHours, kLeastHours);
}

HardwareSection hardware_section(const SimulateSection& section, std::string_view name) {
  const std::vector<HardwareSection>& all = section.hardware;
  if (all.empty()) return {.name = "default"};
  if (name.empty()) return all.front();
  const auto found = std::ranges::find(all, name, &HardwareSection::name);
  TR_CHECK(found != all.end(), "no hardware {}", name);
  return *found;
}

simulator::Hardware hardware_of(const SimulateSection& section, std::string_view name) {
  const HardwareSection hardware = hardware_section(section, name);
  const std::vector<std::string> names{hardware.name};
  return {.name = hardware.name,
          .decode = decode_model(hardware, item_key(kHardwareList, names, 0)),
          .prefill_tokens_per_s = hardware.prefill_tokens_per_s,
          .kv_tokens = hardware.kv_tokens,
          .devices = hardware.devices,
          .price_per_hour = hardware.price_per_hour * static_cast<double>(hardware.devices)};
}

}  // namespace tailrace
