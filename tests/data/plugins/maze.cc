// A maze of corridors: an environment and a reward in a library of their own.
//
// The agent stands in a square of cells and sees which of the four ways are open and where the exit
// lies; it says one word and a newline. Mazes are perfect (one way between any two cells), carved
// from the seed of the task.
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "tailrace/env.h"
#include "tailrace/reward.h"

namespace {

constexpr std::array<const char*, 4> kWays = {"up", "right", "down", "left"};
constexpr std::array<int, 4> kDx = {0, 1, 0, -1}, kDy = {-1, 0, 1, 0};

class Maze : public tailrace::Env {
 public:
  explicit Maze(const tailrace::Settings& settings)
      : size_(static_cast<int>(settings.integer("size"))),
        max_turns_(static_cast<int>(settings.integer("max_turns"))),
        is_judged_(settings.text("scored_by") == "short_way") {}

  tailrace::Info info() const override {
    tailrace::Info info;
    info.max_turns = max_turns_;
    info.max_action_tokens = 2;
    info.vocabulary = {"\n", "up", "right", "down", "left", "N", "S", "E", "W", "-", ">"};
    info.stop_strings = {"\n"};
    if (is_judged_) info.reward = "short_way";
    return info;
  }

  tailrace::Observation reset(const tailrace::Task& task) override {
    tailrace::Random random(task.seed);
    carve(random);
    exit_ = static_cast<int>(random.below(size_ * size_));
    do at_ = static_cast<int>(random.below(size_ * size_));
    while (distance_to_exit()[at_] < 2);
    shortest_ = distance_to_exit()[at_];
    turns_ = 0;
    return {look()};
  }

  tailrace::Step step(std::string_view action) override {
    ++turns_;
    for (int way = 0; way < 4; ++way) {
      if (action == std::string(kWays[way]) + "\n" && open_[at_][way]) at_ = behind(at_, way);
    }
    if (at_ == exit_) return end(tailrace::Step::terminated(is_judged_ ? 0 : 1), 1);
    if (turns_ >= max_turns_) return end(tailrace::Step::truncated("max_turns"), 0);
    return tailrace::Step::observe(look());
  }

  tailrace::Step cut() override { return end(tailrace::Step::truncated("a limit"), 0); }

  std::string sample_action(tailrace::Random& random) override {
    return std::string(kWays[random.below(4)]) + "\n";
  }

  // Goes the right way, most of the time.
  std::string demonstrate(tailrace::Random& random) override {
    if (random.chance(0.3)) return sample_action(random);
    const std::vector<int> distance = distance_to_exit();
    for (int way = 0; way < 4; ++way) {
      if (open_[at_][way] && distance[behind(at_, way)] < distance[at_])
        return std::string(kWays[way]) + "\n";
    }
    return sample_action(random);
  }

 private:
  int behind(int from, int way) const { return from + kDx[way] + kDy[way] * size_; }
  bool leaves(int from, int way) const {
    const int x = from % size_ + kDx[way], y = from / size_ + kDy[way];
    return x < 0 || y < 0 || x >= size_ || y >= size_;
  }

  // Depth first: a way to each cell, and one only.
  void carve(tailrace::Random& random) {
    open_.assign(static_cast<size_t>(size_ * size_), {});
    std::vector<bool> seen(open_.size());
    std::vector<int> path = {0};
    seen[0] = true;
    while (!path.empty()) {
      std::vector<int> ways;
      for (int way = 0; way < 4; ++way) {
        if (!leaves(path.back(), way) && !seen[behind(path.back(), way)]) ways.push_back(way);
      }
      if (ways.empty()) {
        path.pop_back();
        continue;
      }
      const int way = ways[random.below(static_cast<int64_t>(ways.size()))];
      const int next = behind(path.back(), way);
      open_[path.back()][way] = open_[next][(way + 2) % 4] = true;
      seen[next] = true;
      path.push_back(next);
    }
  }

  std::vector<int> distance_to_exit() const {
    std::vector<int> distance(open_.size(), -1), queue = {exit_};
    distance[exit_] = 0;
    for (size_t i = 0; i < queue.size(); ++i) {
      for (int way = 0; way < 4; ++way) {
        const int next = behind(queue[i], way);
        if (!open_[queue[i]][way] || distance[next] >= 0) continue;
        distance[next] = distance[queue[i]] + 1;
        queue.push_back(next);
      }
    }
    return distance;
  }

  // "N E up left >": towards the exit, the open ways.
  std::string look() const {
    const int dx = exit_ % size_ - at_ % size_, dy = exit_ / size_ - at_ / size_;
    std::string text = dy < 0 ? "N" : dy > 0 ? "S" : "-";
    text += dx > 0 ? " E" : dx < 0 ? " W" : " -";
    for (int way = 0; way < 4; ++way) {
      if (open_[at_][way]) text += std::string(" ") + kWays[way];
    }
    return text + " > ";
  }

  tailrace::Step end(tailrace::Step step, double success) const {
    if (is_judged_)
      step.evidence = "{\"turns\":" + std::to_string(turns_) +
                      ",\"shortest\":" + std::to_string(shortest_) +
                      ",\"success\":" + std::to_string(static_cast<int>(success)) + "}";
    return std::move(step).metric("success", success).metric("turns", turns_);
  }

  const int size_, max_turns_;
  const bool is_judged_;
  std::vector<std::array<bool, 4>> open_;  // of each cell, by way
  int at_ = 0, exit_ = 0, turns_ = 0, shortest_ = 0;
};

// 1 for the shortest way, less for a longer one, 0 for none.
class ShortWay : public tailrace::Reward {
 public:
  explicit ShortWay(const tailrace::Settings&) {}

  tailrace::Score score(std::string_view evidence, int64_t) override {
    const double turns = field(evidence, "turns"), shortest = field(evidence, "shortest"),
                 success = field(evidence, "success");
    tailrace::Score score;
    score.reward = success > 0 ? shortest / turns : 0;
    score.metrics = {{"success", success}, {"detour", success > 0 ? turns - shortest : 0}};
    return score;
  }

 private:
  static double field(std::string_view json, const std::string& name) {
    const size_t at = json.find("\"" + name + "\":");
    if (at == std::string_view::npos) throw tailrace::NotDecided("the evidence has no " + name);
    return std::strtod(std::string(json.substr(at + name.size() + 3)).c_str(), nullptr);
  }
};

}  // namespace

TAILRACE_LIBRARY("maze", "1.0") {
  library.environment<Maze>("maze", "find the way out of a maze of corridors, several turns")
      .integer("size", "cells a side", 4, 2, 12)
      .integer("max_turns", "turns until it is truncated", 16, 1, 1000)
      .choice("scored_by", "its own 0 or 1, or the reward short_way", "itself",
              {"itself", "short_way"});
  library.reward<ShortWay>("short_way", "1 for the shortest way out, less for a detour");
}
