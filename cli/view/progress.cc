#include "cli/view/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/view/chart.h"
#include "cli/view/signal.h"
#include "core/base/join_texts.h"
#include "core/run/stage_row.h"

namespace tailrace {
namespace {

std::string format_left(double seconds) {
  if (seconds < 0) return "";
  auto total = static_cast<int64_t>(std::llround(seconds));
  if (total >= 3600) return fmt::format("{}h{:02}m left", total / 3600, total / 60 % 60);
  if (total >= 60) return fmt::format("{}m{:02}s left", total / 60, total % 60);
  return fmt::format("{}s left", total);
}

// The short names of what matters, in reading order.
struct ShownMetric {
  const char* metric;
  const char* label;
  int digits;
  bool by_dataset = false;  // with that of each dataset behind it
};
constexpr ShownMetric kStepValues[] = {{"reward/mean", "reward", 3, true},
                                       {"env/success", "success", 2},
                                       {"rollout/response_tokens/mean", "length", 1}};
constexpr ShownMetric kEvalValues[] = {{"eval/reward", "reward", 3, true},
                                       {"eval/success", "success", 3}};

bool is_step(const MetricsRow& row) { return row.find("reward/mean") != nullptr; }
bool is_eval(const MetricsRow& row) {
  return std::any_of(row.values.begin(), row.values.end(),
                     [](auto& value) { return value.first.starts_with("eval/"); });
}

// " (grid 0.70, sums 0.31)", of a run with several datasets; else nothing.
std::string by_dataset(const MetricsRow& row, std::string_view metric) {
  const size_t slash = metric.find('/');
  const std::string_view begin = metric.substr(0, slash + 1), end = metric.substr(slash);
  std::vector<std::string> parts;
  for (const auto& [name, value] : row.values) {
    if (!name.starts_with(begin) || !name.ends_with(end) ||
        name.size() <= begin.size() + end.size())
      continue;
    parts.push_back(fmt::format(
        "{} {:.2f}", name.substr(begin.size(), name.size() - begin.size() - end.size()), value));
  }
  return parts.empty() ? "" : fmt::format(" ({})", join_texts(parts, ", "));
}

template <size_t N>
std::string values_of(const MetricsRow& row, const ShownMetric (&shown)[N]) {
  std::string out;
  for (const ShownMetric& item : shown)
    if (const double* value = row.find(item.metric))
      out += fmt::format("  {} {:.{}f}{}", item.label, *value, item.digits,
                         item.by_dataset ? by_dataset(row, item.metric) : "");
  return out;
}

// Eight heights of a bar, lowest to highest value.
std::string sparkline(const std::vector<double>& values, size_t width) {
  static constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty()) return "";
  auto [low, high] = std::minmax_element(values.begin(), values.end());
  std::string out;
  size_t columns = std::min(width, values.size());
  for (size_t i = 0; i < columns; ++i) {
    // The mean of the values that share a column.
    size_t begin = values.size() * i / columns,
           end = std::max(begin + 1, values.size() * (i + 1) / columns);
    double sum = 0;
    for (size_t j = begin; j < end; ++j) sum += values[j];
    // All equal: in the middle.
    double height =
        *high > *low ? (sum / static_cast<double>(end - begin) - *low) / (*high - *low) : 0.5;
    // The highest value would be a ninth bar.
    out += kBars[std::clamp(static_cast<int>(height * 8), 0, 7)];
  }
  return out;
}

const MetricsRow* last_where(const std::vector<MetricsRow>& rows,
                             bool (*matches)(const MetricsRow&)) {
  auto found = std::find_if(rows.rbegin(), rows.rend(), matches);
  return found == rows.rend() ? nullptr : &*found;
}

int columns_of(std::FILE* out) {
  winsize size{};
  // A pipe or a file has no width.
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A run that ends with its data has no number of steps.
std::string step_text(const ProgressState& state, const MetricsRow& row) {
  if (state.total_steps == 0) return fmt::format("step {}", row.step);
  return fmt::format("step {}/{}", row.step, state.total_steps);
}

// Up to `total`, at the pace of the last twenty rows that match: it changes with the length of the
// answers. Negative: nothing is known yet.
double left_until(int64_t total, const std::vector<MetricsRow>& rows,
                  bool (*matches)(const MetricsRow&)) {
  std::vector<const MetricsRow*> found;
  for (const MetricsRow& row : rows)
    if (matches(row)) found.push_back(&row);
  if (found.size() < 2 || total == 0) return -1;
  const MetricsRow& last = *found.back();
  const MetricsRow& first = *found[found.size() - std::min<size_t>(found.size(), 21)];
  if (last.step <= first.step) return -1;
  const double pace =
      (last.unix_seconds - first.unix_seconds) / static_cast<double>(last.step - first.step);
  return std::max(0.0, pace * static_cast<double>(total - last.step));
}

// "supervised update 132/2241  loss 1.726  40s left"; empty: the row is about none.
std::string update_line(const ProgressState& state, const MetricsRow& row) {
  const std::optional<StageRow> update = stage_row(row);
  if (!update) return "";
  std::string values;
  if (update->loss != nullptr) values += fmt::format("  loss {:.3f}", *update->loss);
  if (update->accuracy != nullptr) values += fmt::format("  accuracy {:.2f}", *update->accuracy);
  if (update->eval_loss != nullptr)
    values += fmt::format("  held-out loss {:.3f}", *update->eval_loss);
  // Unpaired preferences have none.
  if (update->eval_loss != nullptr && update->eval_accuracy != nullptr)
    values +=
        fmt::format("  {} {:.2f}", update->kind == kRowStages[0] ? "token accuracy" : "accuracy",
                    *update->eval_accuracy);
  if (values.empty()) return "";
  std::string out = fmt::format("{} update {}", words_of_stage(update->kind), row.step);
  if (update->updates > 0) out += fmt::format("/{}", update->updates);
  out += values;
  // The pace is that of its own stage.
  std::vector<MetricsRow> own;
  for (const MetricsRow& other : state.rows)
    if (const std::optional<StageRow> of = stage_row(other);
        of && of->stage == update->stage && of->loss != nullptr)
      own.push_back(other);
  const std::string left =
      format_left(left_until(update->updates, own, [](const MetricsRow&) { return true; }));
  return left.empty() ? out : out + "  " + left;
}

}  // namespace

double seconds_left(const ProgressState& state) {
  return left_until(state.total_steps, state.rows, is_step);
}

void show(std::FILE* out, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  // Not even what is buffered reaches a broken pipe.
  if (written && std::fflush(out) == 0) return;
  [[maybe_unused]] const std::FILE* quiet = std::freopen("/dev/null", "w", out);
}

std::string progress_line(const ProgressState& state, const MetricsRow& row) {
  std::string out = update_line(state, row);
  if (!out.empty()) return out;
  if (is_step(row)) {
    out = step_text(state, row) + values_of(row, kStepValues);
    for (const std::string& word : {signal_of_step(row), exclusions_of_step(row)})
      if (!word.empty()) out += "  " + word;
    if (const double* speed = row.find("perf/tokens_per_s"))
      out += fmt::format("  {} tokens/s", format_value(std::round(*speed)));
    std::string left = format_left(seconds_left(state));
    if (!left.empty()) out += "  " + left;
  }
  if (is_eval(row))
    out += fmt::format("{}held-out at step {}:{}", out.empty() ? "" : "\n", row.step,
                       values_of(row, kEvalValues));
  return out;
}

std::vector<std::string> progress_block(const ProgressState& state, int columns) {
  std::vector<std::string> lines;
  const MetricsRow* step = last_where(state.rows, is_step);
  const MetricsRow* eval = last_where(state.rows, is_eval);
  if (!step) {
    lines.push_back(state.name + "  starting");
    if (!state.rows.empty()) lines.push_back("  " + progress_line(state, state.rows.back()));
  } else {
    double share = state.total_steps > 0
                       ? static_cast<double>(step->step) / static_cast<double>(state.total_steps)
                       : 0;
    // About 60 columns are words.
    int width = std::clamp(columns - 60, 10, 40),
        filled = static_cast<int>(std::lround(share * width));
    std::string bar;
    for (int i = 0; i < width; ++i) bar += i < filled ? "━" : "─";
    std::string head = fmt::format("{}  {}", state.name, step_text(state, *step));
    // Without a number of steps nobody knows how far it is.
    if (state.total_steps > 0)
      head += fmt::format("  {}  {:.0f} %  {}", bar, share * 100, format_left(seconds_left(state)));
    lines.push_back(std::move(head));
    const double* speed = step->find("perf/tokens_per_s");
    lines.push_back(
        fmt::format("{}{}", values_of(*step, kStepValues),
                    speed ? fmt::format("  {} tokens/s", format_value(std::round(*speed))) : ""));
    for (const std::string& word : {signal_of_step(*step), exclusions_of_step(*step)})
      if (!word.empty()) lines.push_back("  " + word);
    std::vector<double> rewards;
    // A null of the file is read as NaN.
    for (const MetricsRow& row : state.rows)
      if (const double* reward = row.find("reward/mean"); reward && std::isfinite(*reward))
        rewards.push_back(*reward);
    lines.push_back("  " +
                    sparkline(rewards, static_cast<size_t>(std::clamp(columns - 4, 10, 72))));
  }
  if (eval)
    lines.push_back(
        fmt::format("  held-out at step {}:{}", eval->step, values_of(*eval, kEvalValues)));
  // A line that wraps would be counted as one and leave its rest behind when the block is redrawn.
  for (std::string& line : lines) {
    int shown = 0;
    size_t end = 0;
    while (end < line.size()) {
      // Characters, not bytes: a bar takes three bytes and one column.
      bool starts_character = (static_cast<unsigned char>(line[end]) & 0xC0) != 0x80;
      if (starts_character && shown++ == columns) break;
      ++end;
    }
    line.resize(end);
  }
  return lines;
}

ProgressView::ProgressView(std::FILE* out, bool terminal, std::string name, int64_t total_steps,
                           Health health)
    : out_(out),
      terminal_(terminal),
      state_{std::move(name), total_steps, {}},
      health_(std::move(health)) {}

void ProgressView::add(MetricsRow row) {
  const std::vector<Finding> found = health_.add(row);
  state_.rows.push_back(std::move(row));
  if (terminal_) {
    erase_block();
    draw_block();
  } else if (std::string line = progress_line(state_, state_.rows.back()); !line.empty()) {
    show(out_, line + "\n");
  }
  for (const Finding& finding : found) say(finding.line());
}

void ProgressView::say(const std::string& line) {
  erase_block();
  show(out_, line + "\n");
  if (terminal_ && !state_.rows.empty()) draw_block();
}

// The last block stays on the screen; what is said after it stands below.
void ProgressView::finish() { drawn_lines_ = 0; }

void ProgressView::erase_block() {
  // Up to the block's first line, then clear to the end of the screen.
  if (drawn_lines_ > 0) show(out_, fmt::format("\x1b[{}A\x1b[J", drawn_lines_));
  drawn_lines_ = 0;
}

void ProgressView::draw_block() {
  auto lines = progress_block(state_, columns_of(out_));
  show(out_, fmt::format("{}\n", join_texts(lines, "\n")));
  drawn_lines_ = static_cast<int>(lines.size());
}

}  // namespace tailrace
