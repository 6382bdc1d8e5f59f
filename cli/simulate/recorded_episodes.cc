#include "cli/simulate/recorded_episodes.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/base/time.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/store/trajectory_store.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Episodes = std::map<MemberId, RecordedEpisode>;

constexpr int64_t kMostTokens = int64_t{1} << 40;

// Appends the turns of a segment. What stands before its first answer is a prompt.
void add_turns(const Segment& segment, RecordedEpisode& episode) {
  size_t turn = 0;
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    if (turn < segment.turn_begins.size() && std::cmp_equal(segment.turn_begins[turn], i)) {
      ++turn;
      episode.turns.emplace_back();
    }
    if (turn == 0)
      ++episode.prompt_tokens;
    else
      ++(segment.roles[i] == TokenRole::kSampled ? episode.turns.back().tokens
                                                 : episode.turns.back().env_tokens);
  }
}

// A verifier's score is not in the body: the timeline has it.
struct Verdict {
  double reward = 0, seconds = 0;
};
std::map<LeaseId, Verdict> verdicts_of(const fs::path& run, std::vector<std::string>& notes) {
  constexpr std::string_view kMissing = "what verifiers said may be missing";
  std::map<LeaseId, Verdict> verdicts;
  const fs::path path = RunPaths{run}.timeline();
  std::error_code error;
  if (!fs::exists(path, error) && !error) return verdicts;  // the run writes none
  const auto timeline = read_timeline(path);
  if (!timeline) {
    notes.push_back(fmt::format("{}; {}", timeline.failure().message, kMissing));
    return verdicts;
  }
  if (timeline.value().num_damaged > 0)
    notes.push_back(fmt::format("{}: {} damaged rows are left out; {}", path.string(),
                                timeline.value().num_damaged, kMissing));
  for (const TimelineRow& row : timeline.value().rows) {
    if (row.what == TimelineWhat::kVerify && row.sample && row.reward)
      verdicts[row.sample->lease] = {*row.reward, seconds_of(row.at - row.from)};
  }
  return verdicts;
}

Episodes episodes_of_run(const fs::path& run, std::vector<std::string>& notes) {
  std::map<MemberId, std::pair<LeaseId, RecordedEpisode>> last;
  std::string damaged;
  const auto read = scheduler::TrajectoryStore::read_bodies(
      RunPaths{run}.trajectories(), [&](const BodyId& id, std::string_view body) {
        // Turns of an attempt that was not over are no episode.
        if (id.lane != Lane::kTrain || id.turns > 0) return;
        const auto known = last.find(id.lease.member);
        // The store may hold bodies of several attempts of a member. The last one is what counted.
        if (known != last.end() && known->second.first.attempt > id.lease.attempt) return;
        const auto trajectory =
            wire::decode_trajectory(std::as_bytes(std::span(body.data(), body.size())));
        if (!trajectory) {
          if (damaged.empty()) damaged = trajectory.failure().message;
        } else if (has_sample(trajectory.value().outcome)) {
          last[id.lease.member] = {id.lease, recorded_episode(trajectory.value())};
        }
      });
  if (!read) throw UserError("{}", read.failure().message);
  if (!damaged.empty())
    throw UserError("{}: a body cannot be read: {}; was it written by another build?",
                    RunPaths{run}.trajectories().string(), damaged);
  for (const std::string& note : read.value())
    notes.push_back(fmt::format("{}; {} episodes of the run are left", note, last.size()));
  const auto verdicts = verdicts_of(run, notes);
  Episodes episodes;
  for (auto& [member, found] : last) {
    auto& [lease, episode] = found;
    if (const auto verdict = verdicts.find(lease); verdict != verdicts.end()) {
      episode.reward = verdict->second.reward;
      episode.verify_seconds = verdict->second.seconds;
    }
    episodes.emplace(member, std::move(episode));
  }
  return episodes;
}

Episodes episodes_of_file(const fs::path& file) {
  const auto text = read_file(file);
  if (!text) throw UserError("{}{}", text.failure().message, missing_file_hint(file));
  Episodes episodes;
  int64_t number = 0;
  for (std::string_view rest = text.value(); !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    if (line.empty()) continue;
    auto episode = parse_recorded_episode(line);
    if (!episode) throw UserError("{}:{}: {}", file.string(), number, episode.failure().message);
    const MemberId member = episode.value().member;
    if (!episodes.emplace(member, std::move(episode).value()).second)
      throw UserError("{}:{}: {} was there already", file.string(), number, to_string(member));
  }
  return episodes;
}

// ---- fields of a line

struct Wrong {
  std::string what;
};

template <class T>
T whole_number(const Json& object, const char* key, bool needed, int64_t most) {
  const auto at = object.find(key);
  if (at == object.end()) {
    if (needed) throw Wrong{fmt::format("{} is missing", key)};
    return 0;
  }
  if (!at->is_number_integer() || *at < 0 || *at > most)
    throw Wrong{
        fmt::format("{} is {}; it must be a whole number from 0 to {}", key, json_text(*at), most)};
  return at->get<T>();
}

double seconds_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return 0;
  constexpr double kMost = 1e8;  // some three years
  if (!at->is_number() || !(at->get<double>() >= 0) || at->get<double>() > kMost)
    throw Wrong{fmt::format("{} is {}; it must be a number of seconds from 0 to {:g}", key,
                            json_text(*at), kMost)};
  return at->get<double>();
}

RecordedTurn turn_in(const Json& object) {
  if (!object.is_object()) throw Wrong{"turns must hold objects"};
  return {.tokens = whole_number<int64_t>(object, "tokens", true, kMostTokens),
          .env_tokens = whole_number<int64_t>(object, "env_tokens", false, kMostTokens),
          .env_seconds = seconds_in(object, "env_seconds")};
}

RecordedEpisode episode_in(const Json& object) {
  // Within the types of a MemberId: a line of somebody's file must not overflow them.
  constexpr int64_t kMostNumber = int64_t{1} << 62, kMostMember = (int64_t{1} << 31) - 1;
  RecordedEpisode episode;
  MemberId& member = episode.member;
  member.dataset = whole_number<int32_t>(object, "dataset", false, kMostMember);
  member.prompt = whole_number<int64_t>(object, "prompt", false, kMostNumber);
  member.epoch = whole_number<int64_t>(object, "epoch", false, kMostNumber);
  member.launch = whole_number<int32_t>(object, "launch", false, kMostMember);
  member.member = whole_number<int32_t>(object, "member", false, kMostMember);
  episode.prompt_tokens = whole_number<int64_t>(object, "prompt_tokens", true, kMostTokens);
  episode.reset_seconds = seconds_in(object, "reset_seconds");
  episode.verify_seconds = seconds_in(object, "verify_seconds");
  if (const auto at = object.find("outcome"); at != object.end()) {
    const auto outcome = at->is_string() ? value_of<Outcome>(at->get<std::string>()) : std::nullopt;
    if (!outcome || !has_sample(*outcome))
      throw Wrong{fmt::format("outcome is {}; it must be finished or truncated", json_text(*at))};
    episode.outcome = *outcome;
  }
  if (const auto at = object.find("reward"); at != object.end() && !at->is_null()) {
    if (!at->is_number()) throw Wrong{fmt::format("reward is {}, no number", json_text(*at))};
    episode.reward = at->get<double>();
  }
  if (const auto at = object.find("digest"); at != object.end()) {
    if (!at->is_string()) throw Wrong{fmt::format("digest is {}, no text", json_text(*at))};
    episode.digest = at->get<std::string>();
  }
  const auto turns = object.find("turns");
  if (turns == object.end() || !turns->is_array()) throw Wrong{"turns, a list, is missing"};
  for (const Json& turn : *turns) episode.turns.push_back(turn_in(turn));
  return episode;
}

}  // namespace

int64_t RecordedEpisode::num_sampled() const {
  int64_t sampled = 0;
  for (const RecordedTurn& turn : turns) sampled += turn.tokens;
  return sampled;
}

RecordedEpisode recorded_episode(const Trajectory& trajectory) {
  RecordedEpisode episode{.member = trajectory.lease.member,
                          .outcome = trajectory.outcome,
                          .reward = trajectory.reward};
  RunningDigest digest;
  for (const Segment& segment : trajectory.segments) {
    add_turns(segment, episode);
    digest.add(std::as_bytes(std::span(segment.tokens)));
    digest.add(std::as_bytes(std::span(segment.logprobs)));
  }
  episode.digest = digest.value();
  // In whole microseconds: the digits behind them are noise.
  std::vector<double> waits;
  for (const float wait : trajectory.env_waits) waits.push_back(std::round(wait * 1e6) / 1e6);
  if (!waits.empty()) episode.reset_seconds = waits.front();
  // An answer without tokens is no turn here: its wait counts with that of the turn before.
  for (size_t i = 1; i < waits.size() && !episode.turns.empty(); ++i)
    episode.turns[std::min(i, episode.turns.size()) - 1].env_seconds += waits[i];
  return episode;
}

std::string format_recorded_episode(const RecordedEpisode& episode) {
  const MemberId& member = episode.member;
  Json json = {{"dataset", member.dataset},
               {"prompt", member.prompt},
               {"epoch", member.epoch},
               {"launch", member.launch},
               {"member", member.member},
               {"outcome", name_of(episode.outcome)},
               {"prompt_tokens", episode.prompt_tokens},
               {"reset_seconds", episode.reset_seconds},
               {"verify_seconds", episode.verify_seconds},
               {"reward", episode.reward ? Json(*episode.reward) : Json()},
               {"digest", episode.digest},
               {"turns", Json::array()}};
  for (const RecordedTurn& turn : episode.turns)
    json["turns"].push_back({{"tokens", turn.tokens},
                             {"env_tokens", turn.env_tokens},
                             {"env_seconds", turn.env_seconds}});
  return json_text(json);
}

Result<RecordedEpisode> parse_recorded_episode(std::string_view line) {
  const auto object = parse_json_row(line);
  if (!object) return object.failure();
  try {
    return episode_in(object.value());
  } catch (const Wrong& wrong) {
    return Failure{wrong.what};
  }
}

Episodes read_recorded_episodes(const fs::path& source, std::vector<std::string>* notes) {
  std::error_code error;
  const bool is_folder = fs::is_directory(source, error);
  if (is_folder && !fs::is_directory(RunPaths{source}.trajectories(), error))
    throw UserError("{} is no run directory: it has no folder trajectories", source.string());
  std::vector<std::string> found;
  Episodes episodes = is_folder ? episodes_of_run(source, found) : episodes_of_file(source);
  if (episodes.empty())
    throw UserError("{} holds no episode that came to an end{}{}", source.string(),
                    found.empty() ? "" : ": ", join_texts(found, "; "));
  if (notes != nullptr) notes->insert(notes->end(), found.begin(), found.end());
  return episodes;
}

}  // namespace tailrace
