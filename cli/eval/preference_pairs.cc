#include "cli/eval/preference_pairs.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

bool is_usable(const EvaluatedEpisode& episode) {
  return !episode.failed && !episode.answer_ids.empty();
}

}  // namespace

std::vector<PreferenceRow> preference_pairs(const std::vector<EvaluatedEpisode>& episodes) {
  std::vector<PreferenceRow> rows;
  for (size_t begin = 0; begin < episodes.size();) {
    size_t end = begin;
    const EvaluatedEpisode *best = nullptr, *worst = nullptr;
    for (; end < episodes.size() && episodes[end].prompt == episodes[begin].prompt; ++end) {
      const EvaluatedEpisode& episode = episodes[end];
      if (!is_usable(episode)) continue;
      if (best == nullptr || episode.reward > best->reward) best = &episode;
      if (worst == nullptr || episode.reward < worst->reward) worst = &episode;
    }
    begin = end;
    if (best == nullptr || best->reward <= worst->reward || best->answer_ids == worst->answer_ids)
      continue;
    rows.push_back(
        {.prompt = best->prompt_ids, .chosen = best->answer_ids, .rejected = worst->answer_ids});
  }
  return rows;
}

std::vector<PreferenceRow> labelled_answers(const std::vector<EvaluatedEpisode>& episodes) {
  std::vector<PreferenceRow> rows;
  for (const EvaluatedEpisode& episode : episodes)
    if (is_usable(episode))
      rows.push_back({.prompt = episode.prompt_ids,
                      .chosen = episode.answer_ids,
                      .rejected = {},
                      .desirable = episode.success});
  return rows;
}

std::string write_preferences(const std::string& file, const std::vector<PreferenceRow>& rows,
                              const std::vector<EvaluatedEpisode>& episodes) {
  std::set<int64_t> prompts;
  for (const EvaluatedEpisode& episode : episodes) prompts.insert(episode.prompt);
  if (rows.empty())
    throw UserError(
        "{}: nothing is written: none of {} prompts has answers of one turn that can be taken (of "
        "a "
        "pair two with different rewards). Try more --samples, or a higher --temperature.",
        file, prompts.size());
  std::string text;
  for (const PreferenceRow& row : rows) text += format_preference_row(row);
  if (const auto written = write_file_atomic(file, text); !written)
    throw UserError("{}", written.failure().message);
  return fmt::format("{} of {}", counted(std::ssize(rows), "row"),
                     counted(std::ssize(prompts), "prompt"));
}

}  // namespace tailrace
