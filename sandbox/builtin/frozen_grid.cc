#include "sandbox/builtin/frozen_grid.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "tailrace/env.h"

namespace tailrace::sandbox {

namespace {

constexpr int kSize = 6;

struct Cell {
  int row = 0, column = 0;
  friend bool operator==(const Cell&, const Cell&) = default;
};

enum class Direction { kUp, kRight, kDown, kLeft };
constexpr std::array kDirections = {Direction::kUp, Direction::kRight, Direction::kDown,
                                    Direction::kLeft};
constexpr std::array<const char*, 4> kNames = {"up", "right", "down", "left"};
// Words that are no action: with them in the vocabulary a policy has to learn which words are.
constexpr std::array<const char*, 11> kDistractors = {
    "jump", "wait", "north", "south", "east", "west", "look", "stop", "go", "run", "back"};

const char* name_of(Direction d) { return kNames[static_cast<int>(d)]; }

Cell neighbour(Cell at, Direction d) {
  switch (d) {
    case Direction::kUp:
      return {at.row - 1, at.column};
    case Direction::kRight:
      return {at.row, at.column + 1};
    case Direction::kDown:
      return {at.row + 1, at.column};
    default:
      return {at.row, at.column - 1};
  }
}

int distance(Cell a, Cell b) { return std::abs(a.row - b.row) + std::abs(a.column - b.column); }

template <class T>
class Field {
 public:
  T& operator[](Cell c) { return values_[c.row * kSize + c.column]; }
  const T& operator[](Cell c) const { return values_[c.row * kSize + c.column]; }
  static bool holds(Cell c) {
    return c.row >= 0 && c.row < kSize && c.column >= 0 && c.column < kSize;
  }

 private:
  std::array<T, kSize * kSize> values_{};
};

struct Map {
  Cell start, goal;
  Field<bool> hole;

  bool safe(Cell c) const { return Field<bool>::holds(c) && !hole[c]; }
  bool approaches(Cell from, Direction d) const {
    return distance(neighbour(from, d), goal) < distance(from, goal);
  }
};

// Every cell that safe distance-reducing moves reach from the start (but the goal) has another such
// move.
bool walkable(const Map& map) {
  Field<bool> reached;
  std::vector<Cell> queue = {map.start};
  reached[map.start] = true;
  for (size_t i = 0; i < queue.size(); ++i) {
    if (queue[i] == map.goal) continue;
    bool onward = false;
    for (Direction d : kDirections) {
      Cell next = neighbour(queue[i], d);
      if (!map.approaches(queue[i], d) || !map.safe(next)) continue;
      onward = true;
      if (!reached[next]) queue.push_back(next);
      reached[next] = true;
    }
    if (!onward) return false;
  }
  return true;
}

Cell random_cell(Rng& rng) {
  int at = static_cast<int>(rng.below(kSize * kSize));
  return {at / kSize, at % kSize};
}

Map draw_map(uint64_t seed) {
  Rng rng(mix({seed, 0x6672'6f7a'656e}));  // "frozen": its own stream
  Map map;
  do {
    int apart = 0;
    // At least four moves, so that no episode is one lucky one; nine leave five of the usual
    // fourteen for detours.
    while (apart < 4 || apart > 9) {
      map.start = random_cell(rng);
      map.goal = random_cell(rng);
      apart = distance(map.start, map.goal);
    }
    for (int row = 0; row < kSize; ++row) {
      for (int column = 0; column < kSize; ++column) {
        Cell c{row, column};
        // For half of the cells: who goes straight for the goal without looking often falls.
        map.hole[c] = c != map.start && c != map.goal && rng.chance(0.5);
      }
    }
  } while (!walkable(map));
  return map;
}

class FrozenGrid final : public Env {
 public:
  explicit FrozenGrid(const Settings& settings)
      : invalid_penalty_(settings.number("invalid_penalty")),
        demo_invalid_(settings.number("demo_invalid")),
        demo_random_(settings.number("demo_random")),
        demo_look_(settings.number("demo_look")) {
    info_.max_turns = settings.integer("max_turns");
    info_.stop_strings = {"\n"};
    // A word too many still fits: it is a mistake of its own, not a line that was cut.
    info_.max_action_tokens = 3;
    info_.vocabulary = {"\n", ">", "what", "?", "ice", "hole", "wall", "goal"};
    auto add = [&](const auto& words) {
      info_.vocabulary.insert(info_.vocabulary.end(), words.begin(), words.end());
    };
    add(kNames);
    add(std::array{"N-", "NE", "-E", "SE", "S-", "SW", "-W", "NW"});
    add(std::array{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
    add(kDistractors);
  }

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    map_ = draw_map(task.seed);
    at_ = map_.start;
    visits_ = {};
    visits_[at_] = 1;
    turns_ = invalid_ = 0;
    return {.text = view(), .state = state()};
  }

  Step step(std::string_view action) override {
    ++turns_;
    double reward = 0;
    std::string heard;
    if (std::optional<Direction> direction = parse(action)) {
      Cell next = neighbour(at_, *direction);
      if (Field<bool>::holds(next)) at_ = next;
      ++visits_[at_];
    } else {
      ++invalid_;
      reward -= invalid_penalty_;
      heard = "what ? ";
    }
    if (at_ == map_.goal) return with_metrics(Step::terminated(reward + 1));
    if (map_.hole[at_]) return with_metrics(Step::terminated(reward));
    if (turns_ == info_.max_turns) return with_metrics(Step::truncated("max_turns", reward));
    return with_metrics(Step::observe(heard + view(), reward).in_state(state()));
  }

  std::string demonstrate(Random& random) override {
    if (random.chance(demo_invalid_)) return invalid_text(random);
    Direction d = straight();
    if (random.chance(demo_random_)) {
      d = kDirections[random.below(4)];
    } else if (random.chance(demo_look_)) {
      d = careful();
    }
    return std::string(name_of(d)) + "\n";
  }

  std::string sample_action(Random& random) override {
    return std::string(kNames[random.below(4)]) + "\n";
  }

 private:
  static std::optional<Direction> parse(std::string_view action) {
    const size_t begin = action.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    for (Direction d : kDirections) {
      // To the end of the action: "up now" is no move, and neither is "up" without its newline,
      // which max_action_tokens cut.
      if (action.substr(begin) == std::string(name_of(d)) + "\n") return d;
    }
    return std::nullopt;
  }

  // Members of a group walk on the same map.
  std::string state() const { return std::to_string(at_.row) + ' ' + std::to_string(at_.column); }

  std::string view() const {
    std::string text;
    text += map_.goal.row < at_.row ? 'N' : map_.goal.row > at_.row ? 'S' : '-';
    text += map_.goal.column > at_.column ? 'E' : map_.goal.column < at_.column ? 'W' : '-';
    // The place of a word says which direction it is of.
    for (Direction d : kDirections) {
      Cell c = neighbour(at_, d);
      text += !Field<bool>::holds(c) ? " wall"
              : map_.hole[c]         ? " hole"
              : c == map_.goal       ? " goal"
                                     : " ice";
    }
    return text + " >";
  }

  Step with_metrics(Step step) const {
    return std::move(step)
        .metric("success", at_ == map_.goal ? 1 : 0)
        .metric("invalid_actions", static_cast<double>(invalid_));
  }

  // One or two words that are no action, so that the newline is within max_action_tokens.
  static std::string invalid_text(Random& random) {
    std::string text = kDistractors[random.below(kDistractors.size())];
    if (random.chance(0.5)) text += std::string(" ") + kNames[random.below(4)];
    return text + "\n";
  }

  // Toward the goal, vertically first, without looking.
  Direction straight() const {
    if (map_.goal.row != at_.row)
      return map_.goal.row < at_.row ? Direction::kUp : Direction::kDown;
    return map_.goal.column < at_.column ? Direction::kLeft : Direction::kRight;
  }

  // The safe neighbour least visited; of equals toward the goal; of these vertically.
  Direction careful() const {
    std::optional<Direction> best;
    auto better = [&](Direction a, Direction b) {
      int visits_a = visits_[neighbour(at_, a)], visits_b = visits_[neighbour(at_, b)];
      if (visits_a != visits_b) return visits_a < visits_b;
      return map_.approaches(at_, a) && !map_.approaches(at_, b);
    };
    // The first of equals stays: this order is what makes it vertical first.
    for (Direction d : {Direction::kUp, Direction::kDown, Direction::kRight, Direction::kLeft}) {
      if (map_.safe(neighbour(at_, d)) && (!best || better(d, *best))) best = d;
    }
    // Never none: the start has a safe move (walkable()), and any other cell was entered from one.
    return best.value_or(straight());
  }

  Info info_;
  const double invalid_penalty_, demo_invalid_, demo_random_, demo_look_;
  Map map_;
  Cell at_;
  Field<int> visits_;
  int64_t turns_ = 0, invalid_ = 0;
};

}  // namespace

void declare_frozen_grid(Library& library) {
  library
      .environment<FrozenGrid>(
          "frozen_grid", "walk to the goal past holes seen only from next to them, several turns")
      .integer("max_turns", "of an episode", 14, 1, 1000)
      .number("invalid_penalty", "what an action that is none costs", 0.05, 0, 1)
      .number("demo_invalid", "share of its turns in which the demonstrator writes no action", 0.06,
              0, 1)
      .number("demo_random", "share in which it goes anywhere", 0.2, 0, 1)
      .number("demo_look",
              "share of the others in which it looks where it steps; else it goes straight for the "
              "goal, vertically first",
              0.4, 0, 1);
}

}  // namespace tailrace::sandbox
