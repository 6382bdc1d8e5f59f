#include "core/trajectory/sample_name.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace tailrace {
namespace {

// Where a key's number goes; null: no such key.
std::optional<int64_t>* number_of(SampleQuery& query, std::string_view key) {
  if (key == "policy") return &query.policy;
  // "domain": in runs that an older build began.
  if (key == "dataset" || key == "domain") return &query.dataset;
  if (key == "epoch") return &query.epoch;
  if (key == "prompt") return &query.prompt;
  if (key == "launch") return &query.launch;
  if (key == "member") return &query.member;
  if (key == "attempt") return &query.attempt;
  return nullptr;
}

// MemberId holds these two in 64 bits, and the others in 32.
bool is_narrow(std::string_view key) { return key != "epoch" && key != "prompt"; }

Result<void> read_word(std::string_view word, SampleQuery& query) {
  const size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  const std::string_view text = equals == word.npos ? "" : word.substr(equals + 1);
  if (key == "lane") {
    query.lane = value_of<Lane>(text);
    if (!query.lane) return Failure{fmt::format("'{}': a lane is train or eval", word)};
    return {};
  }
  std::optional<int64_t>* number = number_of(query, key);
  if (equals == word.npos || number == nullptr)
    return Failure{fmt::format(
        "'{}' is no part of a sample's name. Its parts are prompt=, member=, epoch=, launch=, "
        "attempt=, dataset=, policy=, lane=, as logs print them: \"prompt=12 member=3\"",
        word)};
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const int64_t most =
      is_narrow(key) ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  if (error != std::errc{} || stop != text.data() + text.size() || value < 0 || value > most)
    return Failure{fmt::format("'{}': {} must be a whole number from 0", word, key)};
  *number = value;
  return {};
}

Result<void> read_words(std::string_view text, SampleQuery& query) {
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\n,"), text.size()));
    if (text.empty()) return {};
    const size_t end = std::min(text.find_first_of(" \t\n,"), text.size());
    if (auto read = read_word(text.substr(0, end), query); !read) return read;
    text.remove_prefix(end);
  }
}

template <class Number>
bool fits(const std::optional<int64_t>& wanted, Number value) {
  return !wanted || *wanted == static_cast<int64_t>(value);
}

}  // namespace

std::string sample_name(const BodyId& id) {
  return to_string(id.lease) + (id.lane == Lane::kEval ? " lane=eval" : "");
}

bool SampleQuery::matches(const BodyId& id) const {
  const MemberId& m = id.lease.member;
  return (!lane || *lane == id.lane) && fits(policy, m.policy) && fits(dataset, m.dataset) &&
         fits(epoch, m.epoch) && fits(prompt, m.prompt) && fits(launch, m.launch) &&
         fits(member, m.member) && fits(attempt, id.lease.attempt);
}

Result<SampleQuery> parse_sample_query(std::span<const std::string> words) {
  SampleQuery query;
  for (const std::string& word : words) {
    if (auto read = read_words(word, query); !read) return read.failure();
  }
  return query;
}

Result<BodyId> parse_sample_name(std::string_view text) {
  SampleQuery query;
  if (auto read = read_words(text, query); !read) return read.failure();
  for (const auto* part : {&query.policy, &query.dataset, &query.epoch, &query.prompt,
                           &query.launch, &query.member, &query.attempt}) {
    if (!*part) return Failure{fmt::format("'{}' is not the whole name of a sample", text)};
  }
  const auto narrow = [](const std::optional<int64_t>& n) { return static_cast<int32_t>(*n); };
  return BodyId{query.lane.value_or(Lane::kTrain),
                {{.policy = narrow(query.policy),
                  .dataset = narrow(query.dataset),
                  .epoch = *query.epoch,
                  .prompt = *query.prompt,
                  .launch = narrow(query.launch),
                  .member = narrow(query.member)},
                 narrow(query.attempt)}};
}

}  // namespace tailrace
