#include "cli/inputs/fitted_prompts.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/counted.h"
#include "cli/config/mistakes.h"
#include "cli/config/named_file.h"
#include "cli/inputs/prompts.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "reward/verifier.h"
#include "rollout/episode/episode.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFitBytes = int64_t{1} << 30;

// A policy's first view of a row.
struct Seen {
  std::string text = {};
  std::vector<TokenId> tokens = {};
  int64_t bytes = 0;  // instead, where no episode takes as many (kMostObservationBytes)
};

// The size of a row's prompt, as an environment may show it.
int64_t prompt_bytes(const std::string& row) {
  const Json json = parse_ordered_json(row);
  return json.is_object() ? std::ssize(json_of_field(json, "prompt")) : 0;
}

class Fitter {
 public:
  Fitter(const RowsFile& file, const PromptRoom& room, TooLong too_long)
      : file_(file), room_(room) {
    const RolloutOptions& rollout = room.options.rollout;
    const EpisodeLimits limits = episode_limits(rollout, room.environment.info());
    const int64_t context = limits.max_context_tokens;
    roomy_ = context - limits.max_action_tokens;
    // One position is left for the answer.
    longest_ = std::min(limits.max_prompt_tokens, context - 1);
    // A cut without a limit of prompts does not mean answers of one token.
    if (too_long == TooLong::kCut && rollout.max_prompt_tokens == 0)
      longest_ = std::clamp(longest_, int64_t{1}, std::max(roomy_, context / 2));
  }

  int64_t longest() const { return longest_; }
  // For an answer of rollout.max_action_tokens, where that is given.
  bool is_cramped(const Seen& seen) const {
    return room_.options.rollout.max_action_tokens > 0 && std::ssize(seen.tokens) > roomy_;
  }

  // The observation that the policy will see, which is not always the prompt alone.
  Seen see(const std::string& row, int64_t line) {
    const Result<sandbox::Observation> first = room_.environment.reset({.seed = 0, .data = row});
    room_.environment.close();
    if (!first) {
      // It is refused on its way here.
      const int64_t bytes = prompt_bytes(row);
      if (bytes > sandbox::kMostObservationBytes) return {.bytes = bytes};
      fail(line, first.failure().message);
    }
    const auto& [text, messages, tools, state] = first.value();
    if (const int64_t bytes = std::ssize(text) + std::ssize(messages) + std::ssize(tools);
        bytes > sandbox::kMostObservationBytes)
      return {.bytes = bytes};
    Result<std::vector<TokenId>> written = room_.format.first({text, messages, tools});
    if (!written) fail(line, fmt::format("the prompt: {}", written.failure().message));
    return {.text = text, .tokens = std::move(written).value()};
  }

  bool fits(const Seen& seen) const {
    return seen.bytes == 0 && std::ssize(seen.tokens) <= longest_;
  }

  // Why whoever scores the episodes of a row would never hear of one, as the row is too long. It is
  // asked of rows alone that may be: evidence holds a row, an answer, and not much else.
  std::optional<std::string> fault_of_evidence(const std::string& row) {
    if (std::ssize(row) <= sandbox::kMostEvidenceBytes / 4) return std::nullopt;
    if (room_.environment.info().verifier.empty()) return std::nullopt;
    const auto first = room_.environment.reset({.seed = 0, .data = row});
    std::optional<std::string> fault;
    if (first)
      if (const auto end = room_.environment.cut(); !end) fault = end.failure().message;
    room_.environment.close();
    return fault;
  }

  // The row with as much of its end as fits; nothing: it would not fit without any of its text.
  std::optional<std::string> cut(const text::DatasetRow& row) {
    Json json = parse_ordered_json(row.json);
    std::string* words = text_of(json);
    if (words == nullptr) return std::nullopt;
    const std::string whole = *words;
    const auto fits = [&](size_t bytes) {
      *words = whole.substr(begin_of_end(whole, bytes));
      return this->fits(see(json_text(json), row.line));
    };
    // Invariant: the last `fitting` bytes fit, and the last `too_many` do not. More text takes more
    // tokens, so that the search may halve what is between.
    size_t fitting = 1, too_many = whole.size();
    if (whole.empty() || !fits(fitting)) return std::nullopt;
    // From below, so that the work is bounded by what fits, however long the row is.
    for (size_t bytes = 2; bytes < too_many;) {
      if (!fits(bytes)) {
        too_many = bytes;
        break;
      }
      fitting = bytes;
      bytes *= 2;
    }
    while (fitting + 1 < too_many) {
      const size_t middle = fitting + (too_many - fitting) / 2;
      (fits(middle) ? fitting : too_many) = middle;
    }
    *words = whole.substr(begin_of_end(whole, fitting));
    return json_text(json);
  }

 private:
  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw UserError("{}:{}: {}", file_.file.string(), line, what);
  }

  // Where the last `bytes` of a text begin, or the next whole character of them.
  static size_t begin_of_end(const std::string& text, size_t bytes) {
    size_t begin = text.size() - bytes;
    // Bytes 10xxxxxx go on with a character. The last one stays, whatever it takes.
    while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U)
      ++begin;
    if (begin < text.size()) return begin;
    for (--begin; begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U;) --begin;
    return begin;
  }

  // The text that a person may shorten without changing who said what.
  static std::string* text_of(Json& row) {
    if (!row.is_object() || !row.contains("prompt")) return nullptr;
    Json& prompt = row.at("prompt");
    if (prompt.is_string()) return prompt.get_ptr<std::string*>();
    std::string* longest = nullptr;
    if (!prompt.is_array()) return nullptr;
    for (Json& message : prompt) {
      if (message.at("role") != "user" || !message.contains("content")) continue;
      auto* content = message.at("content").get_ptr<std::string*>();
      if (content != nullptr && (longest == nullptr || content->size() > longest->size()))
        longest = content;
    }
    return longest;
  }

  const RowsFile& file_;
  const PromptRoom& room_;
  int64_t longest_ = 0, roomy_ = 0;  // tokens of a prompt
};

Json to_json(const std::vector<LongRow>& rows) {
  Json list = Json::array();
  for (const LongRow& row : rows) list.push_back({row.line, row.tokens, row.bytes});
  return list;
}

std::vector<LongRow> prompts_in(const nlohmann::json& list) {
  std::vector<LongRow> rows;
  for (const auto& item : list)
    rows.push_back({.line = item.at(0).get<int64_t>(),
                    .tokens = item.at(1).get<int64_t>(),
                    // A run of a build before has none.
                    .bytes = item.size() > 2 ? item.at(2).get<int64_t>() : 0});
  return rows;
}

// A file of a dataset that the run reads.
struct Used {
  size_t index;
  bool held_out;
  std::string key;
};

std::vector<Used> files_that_change(const ResolvedRun& run) {
  std::vector<Used> used;
  for (size_t i = 0; i < run.datasets.size(); ++i) {
    const RunDataset& dataset = run.datasets[i];
    if (!may_change(dataset)) continue;
    if (dataset.ratio > 0 && !dataset.dataset.empty())
      used.push_back({i, /*held_out=*/false, dataset.key("dataset")});
    if (run.options.eval.prompts > 0 && !dataset.eval_dataset.empty())
      used.push_back({i, /*held_out=*/true, dataset.key("eval_dataset")});
  }
  return used;
}

FittedFile& fitted_of(ResolvedRun& run, const Used& used) {
  RunDataset& dataset = run.datasets[used.index];
  return used.held_out ? dataset.fitted_eval : dataset.fitted;
}

// Rows whose ends no verifier would hear of.
void refuse_unscored(const fs::path& file, const std::vector<std::pair<int64_t, std::string>>& rows,
                     int64_t of) {
  constexpr std::string_view kAdvice =
      "Shorten what these rows hold beside their prompts, or leave them out.";
  if (rows.size() == 1)
    throw UserError("{}:{}: the row is too long to be scored: {}.\n       {}", file.string(),
                    rows[0].first, rows[0].second, kAdvice);
  std::string list;
  for (size_t i = 0; i < std::min(rows.size(), kListedRows); ++i)
    list += fmt::format("\n         {}:{}: {}", file.string(), rows[i].first, rows[i].second);
  if (rows.size() > kListedRows)
    list += fmt::format("\n         and {} more", rows.size() - kListedRows);
  throw UserError("{}: {} of {} rows are too long to be scored:{}\n       {}", file.string(),
                  rows.size(), of, list, kAdvice);
}

fs::path file_of(const RunPaths& paths, const Used& used) {
  return paths.prompts() / fmt::format("{}-{}.jsonl", used.index, used.held_out ? "eval" : "train");
}

}  // namespace

bool may_change(const DatasetSection& dataset) { return dataset.too_long != TooLong::kRefuse; }

FittedPrompts fit_prompts(const RowsFile& file, const std::string& key, TooLong too_long,
                          const PromptRoom& room) {
  std::vector<text::DatasetRow> rows = read_prompts(
      file.file, file.columns, room.environment.info().verifier, room.verifiers,
      score_budget(room.options.scheduler.deadlines.verify), room.options.files.limits());
  if (rows.empty()) throw UserError("{} has no rows.", file.file.string());
  FittedPrompts fitted;
  fitted.fit = {.key = key, .file = file.file.string(), .rows = 0, .dropped = {}, .cut = {}};
  Fitter fitter(file, room, too_long);
  std::vector<LongRow> refused;
  std::vector<std::pair<int64_t, std::string>> unscored;
  for (text::DatasetRow& row : rows) {
    fitted.nulls += row.nulls;
    const Seen seen = fitter.see(row.json, row.line);
    // Without a chat template a prompt is plain text. Where the tokenizer would find a special
    // token in it, a person may have meant one, and is told.
    if (fitted.first_special == 0 && seen.bytes == 0 && !room.format.has_template() &&
        room.format.tokenizer().encode(seen.text, {.framed = true}) != seen.tokens)
      fitted.first_special = row.line;
    if (!fitter.fits(seen)) {
      const LongRow found{.line = row.line, .tokens = std::ssize(seen.tokens), .bytes = seen.bytes};
      if (too_long == TooLong::kDrop) {
        fitted.fit.dropped.push_back(found);
        continue;
      }
      std::optional<std::string> shorter;
      if (too_long == TooLong::kCut) shorter = fitter.cut(row);
      if (!shorter) {
        refused.push_back(found);
        continue;
      }
      row.json = std::move(*shorter);
      fitted.fit.cut.push_back(found);
    } else if (fitter.is_cramped(seen)) {
      ++fitted.cramped;
      fitted.longest = std::max(fitted.longest, std::ssize(seen.tokens));
    }
    if (auto fault = fitter.fault_of_evidence(row.json))
      unscored.emplace_back(row.line, std::move(*fault));
    fitted.rows.push_back(std::move(row));
  }
  Mistakes mistakes;
  const std::string option = key.substr(0, key.rfind('.')) + ".too_long";
  std::string limit = fmt::format(
      "at most {} fit (rollout.max_context_tokens, rollout.max_prompt_tokens)", fitter.longest());
  if (std::ranges::any_of(refused, [](const LongRow& row) { return row.bytes > 0; }))
    limit += fmt::format(", and no prompt of more than {} bytes is encoded",
                         sandbox::kMostObservationBytes);
  if (!refused.empty())
    mistakes.look([&] {
      const bool cuts = too_long == TooLong::kCut;
      refuse_long(
          {.file = file.file,
           .noun = "prompt",
           .limit =
               limit + (cuts ? ", and no cut of its own text helps (the prompt, or the longest "
                               "message of the user's)"
                             : ""),
           .advice = cuts
                         ? fmt::format("Raise the limit, or try {}=drop.", option)
                         : fmt::format("Raise the limit, or try {}=drop, which leaves such prompts "
                                       "out, or cut, which keeps the end of each.",
                                       option)},
          refused, std::ssize(rows));
    });
  if (!unscored.empty())
    mistakes.look([&] { refuse_unscored(file.file, unscored, std::ssize(rows)); });
  mistakes.tell();
  if (fitted.rows.empty())
    throw UserError(
        "{}: {}=drop leaves none of its {}: the shortest has {}, and {}.\n       Raise the "
        "limit.",
        file.file.string(), option, counted(std::ssize(rows), "prompt"),
        size_of(std::ranges::min(fitted.fit.dropped, is_shorter)), limit);
  fitted.fit.rows = std::ssize(fitted.rows);
  return fitted;
}

std::vector<FittedPrompts> fit_datasets(ResolvedRun& run, const Registries& registries,
                                        const chat::PromptFormat& format) {
  std::vector<FittedPrompts> all;
  Mistakes mistakes;
  for (const Used& used : files_that_change(run)) {
    FittedFile& fitted = fitted_of(run, used);
    if (!fitted.file.empty()) continue;
    const RunDataset& dataset = run.datasets[used.index];
    const auto environment = registries.environments.make(dataset.env, dataset.settings);
    mistakes.look([&] {
      all.push_back(read_named(used.key, [&] {
        return fit_prompts(rows_of(dataset, used.held_out), used.key, dataset.too_long,
                           {run.options, *environment, format, *registries.verifiers});
      }));
      fitted.rows = all.back().fit.rows;
    });
  }
  mistakes.tell();
  return all;
}

void write_fitted_prompts(const RunPaths& paths, const ResolvedRun& run,
                          const std::vector<FittedPrompts>& fitted) {
  if (fitted.empty()) return;
  const auto write = [](const fs::path& file, std::string_view bytes) {
    if (auto written = write_file_atomic(file, bytes); !written)
      throw UserError("{}", written.failure().message);
  };
  std::error_code error;
  fs::create_directories(paths.prompts(), error);
  if (error) throw UserError("{}", describe_errno("create", paths.prompts(), error.value()));
  // First what became of them: a launch that is killed behind it writes both again.
  Json list = Json::array();
  const auto add = [&](const PromptFit& fit) {
    list.push_back({{"key", fit.key},
                    {"file", fit.file},
                    {"rows", fit.rows},
                    {"dropped", to_json(fit.dropped)},
                    {"cut", to_json(fit.cut)}});
  };
  for (const PromptFit& known : read_prompt_fits(paths))
    if (std::ranges::none_of(fitted, [&](const auto& one) { return one.fit.key == known.key; }))
      add(known);
  for (const FittedPrompts& one : fitted) add(one.fit);
  write(prompt_fits_file(paths), json_text(Json{{"files", list}}, 1) + "\n");
  for (const Used& used : files_that_change(run)) {
    const auto found = std::ranges::find_if(
        fitted, [&](const FittedPrompts& one) { return one.fit.key == used.key; });
    if (found == fitted.end()) continue;
    std::string text;
    for (const text::DatasetRow& row : found->rows) text += row.json + "\n";
    write(file_of(paths, used), text);
  }
}

void find_fitted_prompts(const RunPaths& paths, ResolvedRun& run) {
  for (const Used& used : files_that_change(run))
    if (const fs::path file = file_of(paths, used); fs::exists(file))
      fitted_of(run, used) = {.file = file, .rows = -1};
}

fs::path prompt_fits_file(const RunPaths& paths) { return paths.prompts() / "too_long.json"; }

std::vector<PromptFit> read_prompt_fits(const RunPaths& paths) {
  const fs::path file = prompt_fits_file(paths);
  if (!fs::exists(file)) return {};
  std::vector<PromptFit> fits;
  const nlohmann::json json = read_json_object(file, kMaxFitBytes);
  try {
    for (const auto& item : json.at("files"))
      fits.push_back({.key = item.at("key").get<std::string>(),
                      .file = item.at("file").get<std::string>(),
                      .rows = item.at("rows").get<int64_t>(),
                      .dropped = prompts_in(item.at("dropped")),
                      .cut = prompts_in(item.at("cut"))});
  } catch (const nlohmann::json::exception& error) {
    throw UserError("{}: {}", file.string(), error.what());
  }
  return fits;
}

std::string describe(const PromptFit& fit, size_t most_listed) {
  std::string text = fmt::format("{}: {}", fit.key, counted(fit.rows, "prompt"));
  if (fit.dropped.empty() && fit.cut.empty()) return text + ", none of them too long";
  if (!fit.dropped.empty())
    text += fmt::format("; {} too long and dropped: {}", fit.dropped.size(),
                        list_lines(fit.dropped, most_listed));
  if (!fit.cut.empty())
    text +=
        fmt::format("; {} too long and cut: {}", fit.cut.size(), list_lines(fit.cut, most_listed));
  return text;
}

}  // namespace tailrace
