#include "cli/status/live_feed.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/counted.h"
#include "cli/roles/endpoint.h"
#include "cli/view/samples.h"
#include "cli/view/segment_tree.h"
#include "core/base/enum_names.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

// The end of samples.jsonl that is read where more has come since somebody looked.
constexpr int64_t kSampleBytes = 1 << 20;
// A sample's text is cut here: an agent's episode may have a million characters.
constexpr size_t kTextBytes = 20'000;
constexpr Time kStatusEvery = 1s, kStatusLatest = 20s;
constexpr auto kTokenizerEvery = 5s;
constexpr auto kQuiet = 10s;       // the page has the same
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

std::string samples_json(bool reset, const auto& samples) {
  std::string all;
  for (const auto& sample : samples) all += (all.empty() ? "" : ",") + sample.json;
  return fmt::format("{{\"reset\":{},\"samples\":[{}]}}", reset, all);
}

std::string rows_json(const std::vector<std::string>& lines, bool reset) {
  return fmt::format("{{\"reset\":{},\"rows\":[{}]}}", reset, join_texts(lines, ","));
}

Time time_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string config_of(const RunPaths& paths) {
  const auto config = read_file(paths.config());
  return config ? config.value() : "";
}

}  // namespace

LiveFeed::LiveFeed(std::string run)
    : run_(std::move(run)),
      paths_{run_},
      metrics_(paths_.metrics(), /*from_start=*/true),
      samples_(paths_.samples(), LineTail::kAll),
      facts_(config_of(paths_)),
      // Before anybody looks: a person is told at once that this is no run.
      status_(read_status(run_, facts_)) {}

void LiveFeed::look_at_rows(std::vector<LiveEvent>& events) {
  const int64_t rewinds = metrics_.rewinds();
  std::vector<MetricsRow> rows = metrics_.poll();
  const bool reset = metrics_.rewinds() != rewinds;
  if (reset) {
    // Everything is read anew: rows that were there before are gone.
    metrics_.restart();
    rows = metrics_.poll();
    kept_ = {};
    facts_ = RowFacts(config_of(paths_));
    version_ = -1;
  }
  KeptRows fresh;
  for (const MetricsRow& row : rows) {
    kept_.add(row);
    fresh.add(row);
    facts_.add(row);
    version_ = std::max(version_, row.version);
  }
  if (reset || !rows.empty())
    events.push_back({"rows", rows_json(fresh.lines(kMostRowBytes), reset)});
  if (!reset) return;
  // Samples of steps that are done again go with the rows.
  std::erase_if(shown_samples_, [&](const Shown& sample) { return sample.version > version_; });
  events.push_back({"samples", samples_json(/*reset=*/true, shown_samples_)});
}

// A run that begins may have none yet, and that of a damaged one is not read all the time.
bool LiveFeed::has_tokenizer(Time now) {
  if (tokenizer_ || (next_tokenizer_ && now < *next_tokenizer_)) return tokenizer_ != nullptr;
  next_tokenizer_ = now + kTokenizerEvery;
  try {
    if (std::filesystem::exists(paths_.tokenizer()))
      tokenizer_ = text::load_tokenizer(paths_.tokenizer());
  } catch (const UserError&) {
  }
  return tokenizer_ != nullptr;
}

void LiveFeed::look_at_samples(Time now, std::vector<LiveEvent>& events) {
  if (!has_tokenizer(now)) return;
  samples_.skip(kSampleBytes);
  std::vector<std::string> lines = samples_.poll();
  if (lines.size() > kMostSamples) lines.erase(lines.begin(), lines.end() - kMostSamples);
  std::vector<Shown> found;
  for (const std::string& line : lines)
    if (auto sample = parse_sample(line, *tokenizer_))
      found.push_back({sample.value().version, sample_json(sample.value())});
  if (found.empty()) return;
  events.push_back({"samples", samples_json(/*reset=*/false, found)});
  std::ranges::move(found, std::back_inserter(shown_samples_));
  while (shown_samples_.size() > kMostSamples) shown_samples_.pop_front();
}

void LiveFeed::read_journal(Time now) {
  const Time begin = time_of_this_thread();
  try {
    status_ = read_status(run_, facts_);
  } catch (const UserError& error) {
    status_.facts.state = "unknown";
    status_.facts.about = error.what();
    status_.runs = false;
  }
  if (metrics_.damaged() > 0) {
    std::string& damage = status_.facts.damage;
    damage += fmt::format("{}{} of metrics.jsonl cannot be read and {} left out",
                          damage.empty() ? "" : "; ", counted(metrics_.damaged(), "line"),
                          metrics_.damaged() == 1 ? "is" : "are");
  }
  // By the processor's time: how long another process keeps it waiting, or a person stops it, is no
  // cost.
  const Time took = time_of_this_thread() - begin;
  next_status_ = now + std::clamp<Time>(kShareOfTime * took, kStatusEvery, kStatusLatest);
}

void LiveFeed::look_at_status(Time now, std::vector<LiveEvent>& events) {
  if (next_look_ && now < *next_look_) return;
  next_look_ = now + kStatusEvery;
  // One that died or came back is told at once.
  if (!next_status_ || now >= *next_status_ || is_running(paths_.root) != status_.runs) {
    read_journal(now);
  } else {
    const RunSilence silence = silence_of(paths_);
    status_.facts.quiet = silence.journal;
    status_.facts.silent = silence.all;
  }
  // The silence of a run alone is told once it is long: a run that is over is silent for good.
  StatusFacts facts = status_.facts;
  facts.quiet = {};
  if (!status_.runs || facts.silent < kQuiet) facts.silent = {};
  std::string compared = status_json(facts, status_.state, /*indent=*/-1);
  if (compared == status_compared_) return;
  status_compared_ = std::move(compared);
  events.push_back({"status", status_json(status_.facts, status_.state, /*indent=*/-1)});
}

std::vector<LiveEvent> LiveFeed::poll(Time now, bool samples) {
  std::vector<LiveEvent> events;
  look_at_rows(events);
  if (samples) look_at_samples(now, events);
  look_at_status(now, events);
  return events;
}

std::vector<LiveEvent> LiveFeed::whole() const {
  std::vector<LiveEvent> events;
  events.push_back({"rows", rows_json(kept_.lines(kMostRowBytes), /*reset=*/true)});
  events.push_back({"samples", samples_json(/*reset=*/true, shown_samples_)});
  if (next_status_)
    events.push_back({"status", status_json(status_.facts, status_.state, /*indent=*/-1)});
  return events;
}

}  // namespace tailrace
