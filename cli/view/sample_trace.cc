#include "cli/view/sample_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/view/config_value.h"
#include "cli/view/report_page.h"
#include "cli/view/segment_tree.h"
#include "core/base/file.h"
#include "core/base/group_signal.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/time.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;
using Member = std::pair<Lane, MemberId>;

constexpr size_t kMaxNamed = 8;  // samples that a message lists

Member member_of(const BodyId& id) { return {id.lane, id.lease.member}; }

// A row of a trace file that is not read yet.
struct TraceLine {
  std::filesystem::path file;
  int64_t number = 0;
  std::string text;
};

// The rows of a run directory about samples.
struct Found {
  std::vector<TimelineRow> rows;
  std::map<BodyId, TraceLine> traced;  // those that fit the query
  std::set<BodyId> known;              // the same, of both sources
  int64_t num_known = 0;               // whether they fit or not
  std::optional<BodyId> example;       // of these
  std::vector<int64_t> traced_steps;
  std::vector<std::string> notes, damaged;
};

// Damaged rows of one file: the first with its line and why, and how many there are.
class DamagedRows {
 public:
  explicit DamagedRows(std::filesystem::path file) : file_(std::move(file)) {}

  void add(int64_t line, const std::string& why) {
    if (count_++ == 0) first_ = fmt::format("{}:{}: {}", file_.string(), line, why);
  }
  // `rows`: which of the file are looked at.
  void note(std::string_view rows, std::vector<std::string>& notes) const {
    if (count_ == 1) notes.push_back(fmt::format("{}; the row is passed over", first_));
    if (count_ > 1)
      notes.push_back(
          fmt::format("{}; {} damaged rows of {} are passed over", first_, count_, rows));
  }

 private:
  std::filesystem::path file_;
  std::string first_;
  int64_t count_ = 0;
};

void note_known(const BodyId& id, const SampleQuery& query, Found& found) {
  ++found.num_known;
  if (!found.example || id.lane == Lane::kTrain) found.example = id;
  if (query.matches(id)) found.known.insert(id);
}

void read_history(const RunPaths& paths, const SampleQuery& query, Found& found) {
  if (!std::filesystem::exists(paths.timeline())) {
    found.notes.push_back(
        fmt::format("{} has no timeline.jsonl: scheduler.timeline_rows is 0, or an older build "
                    "began the run. Nothing is known of leases",
                    paths.root.string()));
    return;
  }
  found.rows = read_timeline_of(paths, found.notes);
  for (const TimelineRow& row : found.rows) {
    if (row.sample && row.what == TimelineWhat::kGenerate) note_known(*row.sample, query, found);
  }
}

void read_trace_file(const std::filesystem::path& path, const SampleQuery& query, Found& found) {
  const auto text = read_file(path);
  if (!text) return found.notes.push_back(text.failure().message);
  LineReader lines(text.value());
  DamagedRows damaged(path);
  int64_t of = 0, rows = 0;
  while (auto line = lines.next()) {
    // The first line of a file is its head and no sample.
    if (line->number == 1) {
      const auto head = parse_trace_head(line->text);
      if (!head)
        found.notes.push_back(
            fmt::format("{}:1: it does not say how many samples the step had", path.string()));
      of = head.value_or(0);
      continue;
    }
    ++rows;
    const auto name = sample_of_trace_line(line->text);
    const auto id = name ? parse_sample_name(*name) : Result<BodyId>(Failure{"no sample's row"});
    if (!id) {
      damaged.add(line->number, id.failure().message);
      continue;
    }
    note_known(id.value(), query, found);
    if (query.matches(id.value()))
      found.traced[id.value()] = {path, line->number, std::string(line->text)};
  }
  damaged.note("this file", found.damaged);
  // A trace has a bound in bytes, and then keeps the first samples of its batch.
  if (rows < of)
    found.notes.push_back(
        fmt::format("{} has {} of the step's {} samples: those of its batch that came first",
                    path.string(), rows, of));
}

void read_traces(const RunPaths& paths, const SampleQuery& query, Found& found) {
  std::error_code error;
  std::map<int64_t, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(paths.traces(), error)) {
    if (const auto step = trace_file_step(entry.path())) files[*step] = entry.path();
  }
  for (const auto& [step, path] : files) {
    found.traced_steps.push_back(step);
    read_trace_file(path, query, found);
  }
}

Failure nothing_fits(const RunPaths& paths, const Found& found) {
  // Damaged rows may be why.
  std::string notes;
  for (const std::string& note : found.damaged) notes += "\n       " + note;
  if (!found.notes.empty()) notes += "\n       " + found.notes.front();
  if (found.num_known == 0)
    return Failure{
        fmt::format("{} knows of no sample yet: it has neither leases in timeline.jsonl "
                    "(scheduler.timeline_rows) nor tokens in traces/ (train.trace_steps).{}",
                    paths.root.string(), notes)};
  return Failure{fmt::format(
      "{} knows no such sample. It knows {} leases and traces, for example \"{}\"; traces/ holds "
      "the tokens of steps [{}].{}",
      paths.root.string(), found.num_known, sample_name(*found.example),
      fmt::join(found.traced_steps, ", "), notes)};
}

// Attempts of one member are one sample; a prompt alone, or one launched twice, names several.
Result<Member> choose_member(const RunPaths& paths, const SampleQuery& query, const Found& found) {
  std::set<Member> members;
  for (const BodyId& id : found.known) members.insert(member_of(id));
  const bool has_trained = std::ranges::any_of(
      members, [](const Member& member) { return member.first == Lane::kTrain; });
  // Held-out prompts are numbered like those of training, which are mostly meant.
  if (!query.lane && has_trained)
    std::erase_if(members, [](const Member& member) { return member.first == Lane::kEval; });
  if (members.empty()) return nothing_fits(paths, found);
  if (members.size() == 1) return *members.begin();
  std::string names;
  for (const Member& member : members) {
    if (const auto shown = std::ranges::count(names, '\n'); std::cmp_equal(shown, kMaxNamed)) break;
    names += fmt::format("\n         {}{}", to_string(member.second),
                         member.first == Lane::kEval ? " lane=eval" : "");
  }
  return Failure{fmt::format("{} samples have this name; say more of it:{}{}", members.size(),
                             names, members.size() > kMaxNamed ? "\n         ..." : "")};
}

std::vector<TimelineRow> history_of(const Found& found, const Member& member,
                                    const std::optional<TraceRow>& tokens) {
  std::vector<TimelineRow> history;
  for (const TimelineRow& row : found.rows) {
    const bool is_its = row.sample && member_of(*row.sample) == member;
    // The row of a step names no sample: which step trained this one is known by its trace alone.
    const bool trains_it = tokens && row.what == TimelineWhat::kTrain && row.number == tokens->step;
    if (is_its || trains_it) history.push_back(row);
  }
  std::ranges::stable_sort(history, {}, &TimelineRow::from);
  return history;
}

// Counts the group's meetings in the file of a sample's step. A damaged row counts as missing.
void count_meetings(const std::filesystem::path& file, SampleTrace& trace) {
  const auto text = read_file(file);
  if (!text) return trace.notes.push_back(text.failure().message);
  std::map<uint64_t, int64_t> met;
  DamagedRows damaged(file);
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    const auto name = sample_of_trace_line(line->text);
    const auto id = name ? parse_sample_name(*name) : Result<BodyId>(Failure{""});
    if (!id || !same_group(id.value().lease.member, trace.sample.lease.member)) continue;
    const auto row = parse_trace_row(line->text);
    if (!row) {
      damaged.add(line->number, row.failure().message);
      continue;
    }
    ++trace.group_members;
    // Once a member, however often it comes by.
    std::set<uint64_t> anchors;
    for (const TraceTurn& turn : row.value().turns) anchors.insert(turn.anchor);
    for (const uint64_t anchor : anchors) ++met[anchor];
  }
  damaged.note("its group", trace.notes);
  for (const TraceTurn& turn : trace.tokens->turns)
    trace.met.push_back(turn.anchor == 0 ? 0 : met[turn.anchor]);
}

std::string why_untraced(const SampleTrace& trace, const Found& found) {
  if (trace.sample.lane == Lane::kEval)
    return "it is held out: no step trained it, so that there are no ratios and advantages; what "
           "was "
           "said is in samples.jsonl and in the report, where they keep it";
  if (found.traced_steps.empty())
    return "no tokens are kept: train.trace_steps is 0, or no step is published yet";
  return fmt::format(
      "its tokens are not kept: no step trained it, or none of the last ones (train.trace_steps); "
      "traces/ holds steps {}",
      fmt::join(found.traced_steps, ", "));
}

// ---- for people

std::string what_came(const TimelineRow& row) {
  std::string text = row.end;
  if (row.tokens >= 0) {
    text += row.min_version == row.max_version
                ? fmt::format(", {} tokens of version {}", row.tokens, row.max_version)
                : fmt::format(", {} tokens of versions {} to {}", row.tokens, row.min_version,
                              row.max_version);
  }
  if (row.reward) text += fmt::format(", reward {}", *row.reward);
  return text;
}

// The wait between two spans of its history.
std::string_view wait_before(const TimelineRow& next) {
  if (next.what == TimelineWhat::kVerify) return "waits for a reward worker";
  if (next.what == TimelineWhat::kTrain) return "waits for its group, its step and the trainer";
  return "waits to be tried again";
}

std::string show_history(const std::vector<TimelineRow>& history) {
  if (history.empty()) return "";
  std::string out = "history (seconds of the run)\n";
  Time last = history.front().from;
  for (const TimelineRow& row : history) {
    if (row.from > last)
      out += fmt::format("  {:>10.3f} {:>8.3f}  {}\n", seconds_of(last),
                         seconds_of(row.from - last), wait_before(row));
    std::string what(name_of(row.what));
    if (row.sample && row.sample->lease.attempt > 1)
      what += fmt::format(" attempt {}", row.sample->lease.attempt);
    if (row.prefix_turns > 0) what += fmt::format(" from turn {}", row.prefix_turns + 1);
    if (row.what == TimelineWhat::kVerify && row.verify_attempt > 1)
      what += fmt::format(", verification {}", row.verify_attempt);
    if (row.what == TimelineWhat::kTrain) what += fmt::format(" step {}", row.number);
    out += fmt::format("  {:>10.3f} {:>8.3f}  {:<10} {:<12} {}\n", seconds_of(row.from),
                       seconds_of(row.at - row.from), what, row.worker, what_came(row));
    last = std::max(last, row.at);
  }
  return out;
}

// The advice to a person, or the reason.
std::string explain(LeftOut why, std::string_view judged) {
  switch (why) {
    case LeftOut::kNoSignal:
      return fmt::format("the {} in its group are all equal", judged);
    case LeftOut::kTruncated:
      return "its sample was cut (algo.truncated: mask)";
    case LeftOut::kGreedyBaseline:
      return "its sample is the greedy baseline of its group";
    case LeftOut::kTooOld:
      return "older than scheduler.max_staleness";
    case LeftOut::kFirstToken:
      return "nothing stands in front of it that predicts it";
    case LeftOut::kRejected:
      return "algo.correction rejected it";
    case LeftOut::kCriticWarmUp:
      return "the step trained the critic alone (critic.warmup_steps)";
  }
  return "";
}

// "not in the loss: 3 tokens too_old (older than scheduler.max_staleness), ...". Of one reason for
// all its count says nothing.
std::string show_left_out(const std::map<LeftOut, int64_t>& left_out, std::string_view judged) {
  // A row of an older build has no reason.
  if (left_out.empty())
    return fmt::format(
        "not in the loss: the {} in its group are all equal, its tokens are older than "
        "scheduler.max_staleness, it was cut (algo.truncated), or it is a greedy baseline",
        judged);
  std::vector<std::string> reasons;
  for (const auto& [why, count] : left_out)
    reasons.push_back(left_out.size() == 1
                          ? fmt::format("{} ({})", name_of(why), explain(why, judged))
                          : fmt::format("{} {} ({})", count, name_of(why), explain(why, judged)));
  return fmt::format("not in the loss: {}", join_texts(reasons, ", "));
}

// "0.25", or where tokens differ "0.25 (0.5 to -0.125)".
std::string show_advantage(const TraceTurn& turn, std::string_view judged) {
  if (!turn.advantage)
    return turn.left_out.empty() ? "not in the loss" : show_left_out(turn.left_out, judged);
  if (*turn.first == *turn.last && *turn.first == *turn.advantage)
    return fmt::format("{:.5g}", *turn.advantage);
  return fmt::format("{:.5g} ({:.5g} to {:.5g})", *turn.advantage, *turn.first, *turn.last);
}

// The text about a turn that is in the loss in part: ", without 1 too_old".
std::string show_missing(const TraceTurn& turn) {
  if (!turn.advantage || turn.left_out.empty()) return "";
  std::vector<std::string> reasons;
  for (const auto& [why, count] : turn.left_out)
    reasons.push_back(fmt::format("{} {}", count, name_of(why)));
  return fmt::format(", without {}", join_texts(reasons, ", "));
}

// The text about the part of the reward that no turn earned.
std::string show_rest(const TraceRow& row) {
  double earned = 0;
  bool known = false;
  for (const TraceTurn& turn : row.turns) {
    known = known || turn.reward.has_value();
    earned += turn.reward.value_or(0);
  }
  std::string out;
  if (known && !same_reward(earned, row.reward))
    out += fmt::format("  {:>6} {:>9.5g}  for the episode as a whole\n", "", row.reward - earned);
  if (row.shaped_reward)
    out += fmt::format("  {:>6} {:>9.5g}  for its length\n", "", *row.shaped_reward - row.reward);
  return out;
}

std::string show_turns(const SampleTrace& trace) {
  const TraceRow& row = *trace.tokens;
  if (row.turns.empty()) return "";
  const auto any = [&](std::optional<double> TraceTurn::*column) {
    return std::ranges::any_of(row.turns,
                               [&](const TraceTurn& turn) { return (turn.*column).has_value(); });
  };
  const bool critic = any(&TraceTurn::value), returns = any(&TraceTurn::turn_return);
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.5g}", *value) : "";
  };
  const auto line = [&](std::string_view turn, std::string_view reward, std::string_view value,
                        std::string_view after, std::string_view state, std::string_view met,
                        std::string_view tokens, std::string_view advantage) {
    std::string out = fmt::format("  {:>6} {:>9}", turn, reward);
    if (critic) out += fmt::format(" {:>9}", value);
    if (returns) out += fmt::format(" {:>9}", after);
    return out + fmt::format("  {:<8} {:>8} {:>8}  {}\n", state, met, tokens, advantage);
  };
  std::string out = fmt::format(
      "turns (state: its first digits, and how many of the group's {} traced members met it)\n",
      trace.group_members);
  out += line("turn", "reward", "value", "return", "state", "met by", "tokens", "advantage");
  for (size_t i = 0; i < row.turns.size(); ++i) {
    const TraceTurn& turn = row.turns[i];
    const bool known = turn.anchor != 0;
    out += line(std::to_string(turn.number + 1), number(turn.reward), number(turn.value),
                number(turn.turn_return), known ? anchor_text(turn.anchor).substr(0, 8) : "",
                known && i < trace.met.size() ? std::to_string(trace.met[i]) : "",
                turn.trained == turn.tokens || turn.trained == 0
                    ? std::to_string(turn.tokens)
                    : fmt::format("{} of {}", turn.trained, turn.tokens),
                show_advantage(turn, trace.judged) + show_missing(turn));
  }
  return out + show_rest(row);
}

// A token on one line: what would break it is escaped.
std::string token_text(const text::Tokenizer* tokenizer, TokenId id) {
  if (tokenizer == nullptr || id >= tokenizer->vocab_size()) return "";
  std::string out;
  for (const char c : tokenizer->decode(std::span(&id, 1), /*keep_special=*/true)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

std::string show_segment(const TraceSegment& segment, const text::Tokenizer* tokenizer) {
  std::string out = fmt::format(
      "  {:>6} {:>7} {:<12} {:>4} {:>7} {:>10} {:>10} {:>10} {:>15} {:>10}  {}\n", "at", "token",
      "role", "turn", "version", "sampled", "old", "new", "ratio", "advantage", "text");
  const std::vector<int32_t> answers = answers_of_tokens(segment.roles, segment.turn_begins);
  size_t target = 0;
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    const bool sampled = segment.roles[i] == TokenRole::kSampled;
    const bool trained = segment.mask[i] == 1;
    const auto number = [](double value) { return fmt::format("{:.5f}", value); };
    const std::string turn =
        answers[i] < 0 ? ""
                       : std::to_string(segment.turn_numbers[static_cast<size_t>(answers[i])] + 1);
    // "masked": of an older build, which kept no reason.
    std::string before = "", after = "", advantage = "", ratio = sampled ? "masked" : "";
    for (const auto& [why, places] : segment.left_out)
      if (std::ranges::binary_search(places, static_cast<int32_t>(i))) ratio = name_of(why);
    if (trained) {
      before = number(segment.old_logprobs[target]);
      after = number(segment.new_logprobs[target]);
      ratio = fmt::format(
          "{:.4f}", std::exp(double{segment.new_logprobs[target]} - segment.old_logprobs[target]));
      if (!segment.advantages.empty()) advantage = number(segment.advantages[target]);
      ++target;
    }
    out += fmt::format("  {:>6} {:>7} {:<12} {:>4} {:>7} {:>10} {:>10} {:>10} {:>15} {:>10}  {}\n",
                       static_cast<size_t>(segment.parent_tokens) + i, segment.tokens[i],
                       name_of(segment.roles[i]), turn,
                       sampled ? std::to_string(segment.versions[i]) : "",
                       sampled ? number(segment.logprobs[i]) : "", before, after, ratio, advantage,
                       token_text(tokenizer, segment.tokens[i]));
  }
  return out;
}

std::string show_tokens(const TraceRow& row, const text::Tokenizer* tokenizer) {
  std::string out = fmt::format(
      "tokens (natural logs at temperature {}; old: under the weights that step {} started from, "
      "new: under those of its last pass)\n",
      row.temperature, row.step);
  if (row.segments.size() == 1) return out + show_segment(row.segments[0], tokenizer);
  std::vector<SegmentShape> shapes;
  for (const TraceSegment& segment : row.segments)
    shapes.push_back({segment.parent, segment.parent_tokens, segment.roles});
  const std::vector<SegmentLine> lines = describe_segments(shapes);
  for (const SegmentLine& line : lines)
    out += fmt::format("  {:{}}{}\n", "", 2 * line.depth, line.text);
  for (size_t i = 0; i < row.segments.size(); ++i)
    out += fmt::format("  {}\n{}", lines[i].text, show_segment(row.segments[i], tokenizer));
  return out;
}

// "0.5", or where tokens differ "-0.5 to 0.25".
std::string show_advantages(const TraceRow& row) {
  float low = *row.advantage, high = low;
  for (const TraceSegment& segment : row.segments) {
    for (const float advantage : segment.advantages) {
      low = std::min(low, advantage);
      high = std::max(high, advantage);
    }
  }
  return low == high ? fmt::format("advantage {}", low)
                     : fmt::format("advantages {} to {}", low, high);
}

std::string why_untrained(const TraceRow& row, std::string_view judged) {
  std::map<LeftOut, int64_t> left_out;
  for (const TraceSegment& segment : row.segments)
    for (const auto& [why, places] : segment.left_out) left_out[why] += std::ssize(places);
  return show_left_out(left_out, judged);
}

Json without_proof(std::string_view line) {
  Json json = parse_json(line);
  json.erase("proof");
  return json;
}

}  // namespace

Result<SampleTrace> find_sample(const RunPaths& paths, const SampleQuery& query) {
  Found found;
  read_history(paths, query, found);
  read_traces(paths, query, found);
  const auto member = choose_member(paths, query, found);
  if (!member) return member.failure();
  SampleTrace trace{
      .sample = {}, .history = {}, .tokens = {}, .met = {}, .notes = std::move(found.damaged)};
  if (const auto config = read_file(paths.config()))
    trace.judged = judged_values(read_config_text(config.value()));
  trace.notes.insert(trace.notes.end(), found.notes.begin(), found.notes.end());
  for (const BodyId& id : found.known) {
    if (member_of(id) == member.value()) trace.sample = id;  // in the order of attempts
  }
  bool is_damaged = false;
  std::filesystem::path file;
  // Attempts in their order: a later one that was trained takes the place of an earlier one.
  for (const auto& [id, line] : found.traced) {
    if (member_of(id) != member.value()) continue;
    auto row = parse_trace_row(line.text);
    if (row) {
      trace.tokens = std::move(row).value();
      trace.sample = id;  // an attempt in its place may have been let go
      file = line.file;
      continue;
    }
    is_damaged = true;
    DamagedRows damaged(line.file);
    damaged.add(line.number, row.failure().message);
    damaged.note("this sample", trace.notes);
  }
  if (trace.tokens) count_meetings(file, trace);
  trace.history = history_of(found, member.value(), trace.tokens);
  if (!trace.tokens && !is_damaged) trace.notes.push_back(why_untraced(trace, found));
  return trace;
}

std::string show_sample_trace(const SampleTrace& trace, const text::Tokenizer* tokenizer) {
  std::string out = fmt::format("sample   {}\n", sample_name(trace.sample));
  if (trace.tokens) {
    const TraceRow& row = *trace.tokens;
    out +=
        fmt::format("step     {}: {}, reward {}, {}\n", row.step, name_of(row.outcome), row.reward,
                    row.advantage ? show_advantages(row) : why_untrained(row, trace.judged));
  }
  out += show_history(trace.history);
  if (trace.tokens) out += show_turns(trace) + show_tokens(*trace.tokens, tokenizer);
  return out;
}

std::string sample_trace_json(const SampleTrace& trace) {
  Json json;
  json["sample"] = sample_name(trace.sample);
  json["history"] = Json::array();
  for (const TimelineRow& row : trace.history)
    json["history"].push_back(without_proof(format_timeline_row(row)));
  json["tokens"] = trace.tokens ? without_proof(format_trace_row(*trace.tokens)) : Json();
  json["met"] = trace.met;
  json["group_members"] = trace.group_members;
  json["notes"] = trace.notes;
  return json_text(json);
}

}  // namespace tailrace
