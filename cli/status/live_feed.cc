#include "cli/status/live_feed.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/view/samples.h"
#include "cli/view/segment_tree.h"
#include "core/base/enum_names.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

// Of samples.jsonl, that a page which begins is shown samples of.
constexpr int64_t kSampleBytes = 1 << 20;
// Of one sample's text: an agent's episode may have a million characters.
constexpr size_t kTextBytes = 20'000;
constexpr auto kStatusEvery = 1s;
constexpr int kShareOfTime = 100;  // a look is followed by so many times its own length

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::string sample_json(const Sample& sample) {
  Json json = {{"step", sample.step},
               {"version", sample.version},
               {"name", sample.name},
               {"dataset", sample.dataset},
               {"reward", number_or_null(sample.reward)},
               {"success", number_or_null(sample.success)},
               {"segments", Json::array()}};
  std::vector<SegmentShape> shapes;
  for (const Sample::Segment& segment : sample.segments)
    shapes.push_back({segment.parent, segment.parent_tokens, segment.roles});
  const std::vector<SegmentLine> lines = describe_segments(shapes);
  size_t left = kTextBytes;
  for (size_t i = 0; i < sample.segments.size() && left > 0; ++i) {
    Json text = Json::array();
    for (const SampleText& piece : sample.segments[i].text) {
      if (left == 0) break;
      text.push_back({{"role", name_of(piece.role)}, {"text", shortened(piece.text, left)}});
      left -= std::min(left, piece.text.size());
    }
    json["segments"].push_back(
        {{"note", sample.segments.size() > 1 ? lines[i].text : ""}, {"text", std::move(text)}});
  }
  return json_text(json);
}

std::string rows_json(std::span<const MetricsRow* const> rows, bool reset) {
  std::vector<std::string> lines;
  for (const MetricsRow* row : rows) lines.push_back(format_metrics_row(*row));
  return fmt::format("{{\"reset\":{},\"rows\":[{}]}}", reset, fmt::join(lines, ","));
}

std::string samples_json(const auto& samples) {
  return fmt::format("[{}]", fmt::join(samples, ","));
}

bool is_evaluation(const MetricsRow& row) {
  return std::ranges::any_of(row.values,
                             [](const auto& value) { return value.first.starts_with("eval/"); });
}

}  // namespace

std::vector<const MetricsRow*> thinned(std::span<const MetricsRow> rows, size_t most) {
  const size_t stride = std::max<size_t>(1, (rows.size() + most - 1) / most);
  const bool few_evaluations =
      static_cast<size_t>(std::ranges::count_if(rows, is_evaluation)) <= most / 2;
  std::vector<const MetricsRow*> kept;
  for (size_t i = 0; i < rows.size(); ++i)
    if (i % stride == 0 || i + 1 == rows.size() || (few_evaluations && is_evaluation(rows[i])))
      kept.push_back(&rows[i]);
  return kept;
}

LiveFeed::LiveFeed(std::string run)
    : run_(std::move(run)),
      paths_{run_},
      metrics_(paths_.metrics(), /*from_start=*/true),
      samples_(paths_.samples(), kSampleBytes),
      // Before anybody looks: a person is told at once that this is no run.
      status_(read_status(run_, {})) {}

// Whether rows that were told before are gone.
bool LiveFeed::look_at_rows() {
  const int64_t rewinds = metrics_.rewinds();
  std::vector<MetricsRow> rows = metrics_.poll();
  const bool reset = metrics_.rewinds() != rewinds;
  if (reset) {
    // What is there now, and not what was there before as well.
    auto all = read_metrics(paths_.metrics());
    rows_ = all ? std::move(all).value() : std::vector<MetricsRow>();
  } else {
    std::ranges::move(rows, std::back_inserter(rows_));
  }
  return reset;
}

std::vector<std::string> LiveFeed::new_samples() {
  std::vector<std::string> found;
  // A run that begins may have none yet; its lines wait until then.
  if (!tokenizer_) {
    try {
      if (std::filesystem::exists(paths_.tokenizer()))
        tokenizer_ = text::load_tokenizer(paths_.tokenizer());
    } catch (const UserError&) {
    }
    if (!tokenizer_) return found;
  }
  for (const std::string& line : samples_.poll())
    if (auto sample = parse_sample(line, *tokenizer_)) found.push_back(sample_json(sample.value()));
  for (const std::string& sample : found) shown_samples_.push_back(sample);
  while (shown_samples_.size() > kMostSamples) shown_samples_.pop_front();
  return found;
}

// Whether there is another one.
bool LiveFeed::look_at_status(Time now) {
  if (next_status_ && now < *next_status_) return false;
  const auto begin = std::chrono::steady_clock::now();
  std::string json;
  try {
    status_ = read_status(run_, rows_);
    json = status_json(status_.facts, status_.state, /*indent=*/-1);
  } catch (const UserError& error) {
    status_.facts.state = "unknown";
    status_.facts.about = error.what();
    json = status_json(status_.facts, status_.state, /*indent=*/-1);
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  next_status_ = now + std::max<Time>(kStatusEvery, kShareOfTime * took);
  if (json == status_json_) return false;
  status_json_ = std::move(json);
  return true;
}

std::vector<LiveEvent> LiveFeed::poll(Time now) {
  std::vector<LiveEvent> events;
  const size_t before = rows_.size();
  if (look_at_rows()) {
    events.push_back({"rows", rows_json(thinned(rows_, kMostRows), /*reset=*/true)});
  } else if (rows_.size() > before) {
    const auto fresh = std::span<const MetricsRow>(rows_).subspan(before);
    events.push_back({"rows", rows_json(thinned(fresh, kMostRows), /*reset=*/false)});
  }
  if (const auto samples = new_samples(); !samples.empty()) {
    const size_t skipped = samples.size() - std::min(samples.size(), kMostSamples);
    events.push_back({"samples", samples_json(std::span(samples).subspan(skipped))});
  }
  if (look_at_status(now)) events.push_back({"status", status_json_});
  return events;
}

std::vector<LiveEvent> LiveFeed::whole() const {
  std::vector<LiveEvent> events;
  events.push_back({"rows", rows_json(thinned(rows_, kMostRows), /*reset=*/true)});
  if (!shown_samples_.empty()) events.push_back({"samples", samples_json(shown_samples_)});
  if (!status_json_.empty()) events.push_back({"status", status_json_});
  return events;
}

}  // namespace tailrace
