// Plays episodes of the maze as Tailrace does: through tailrace_library_1() and the functions that
// it gives. Nothing is loaded; maze.cc is compiled in. Any failed check ends the program.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tailrace/abi.h"

namespace {

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (condition) break;                                                        \
    std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    std::exit(1);                                                                \
  } while (false)

std::string copy(tr_text text) { return std::string(text.data, text.bytes); }
tr_text view(std::string_view text) { return {text.data(), text.size()}; }

tr_step empty_step() {
  tr_step step{};
  step.size = sizeof step;
  return step;
}

double metric_of(const tr_step& step, const std::string& name) {
  for (uint64_t i = 0; i < step.num_metrics; ++i) {
    if (name == step.metrics[i].name) return step.metrics[i].value;
  }
  CHECK(!"the metric is there");
  return 0;
}

// A library may be asked for its table once in a process.
const tr_library& maze_library() {
  static const tr_library* library = [] {
    static tr_host host{};
    host.size = sizeof host;
    host.abi = TR_ABI;
    host.version = "test";
    host.log = [](void*, int32_t, tr_text line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.bytes), line.data);
    };
    return tailrace_library_1(&host);
  }();
  CHECK(library != nullptr);
  return *library;
}

class Player {
 public:
  explicit Player(const std::string& scored_by = "itself")
      : type_(*maze_library().environments[0]) {
    // The host gives each setting a value, as here.
    const std::vector<tr_setting_value> values = {
        {"size", view("4")}, {"max_turns", view("16")}, {"scored_by", view(scored_by)}};
    tr_text reason{};
    CHECK(type_.create(nullptr, values.data(), values.size(), &env_, &reason) == TR_OK);
  }
  ~Player() { type_.destroy(env_); }
  Player(const Player&) = delete;

  int32_t reset(uint64_t seed, tr_step* out) {
    tr_task task{};
    task.size = sizeof task;
    task.seed = seed;
    return type_.reset(env_, &task, out);
  }
  int32_t step(const std::string& action, tr_step* out) {
    return type_.step(env_, view(action), out);
  }
  int32_t cut(tr_step* out) { return type_.cut(env_, out); }
  std::string demonstrate(uint64_t random) {
    tr_text action{};
    CHECK(type_.demonstrate(env_, random, &action) == TR_OK);
    return copy(action);
  }
  std::string sample_action(uint64_t random) {
    tr_text action{};
    CHECK(type_.sample_action(env_, random, &action) == TR_OK);
    return copy(action);
  }
  tr_info info() {
    tr_info info{};
    info.size = sizeof info;
    CHECK(type_.info(env_, &info) == TR_OK);
    return info;
  }

 private:
  const tr_env_type& type_;
  tr_env* env_ = nullptr;
};

struct Episode {
  std::string text;  // all that was seen and said
  double reward = 0, success = 0, turns = 0;
  int32_t ending = TR_RUNNING;
  std::string evidence;
};

// One episode of the demonstrator's, or of random actions.
Episode play(Player& player, uint64_t seed, bool is_demonstrated) {
  Episode episode;
  tr_step step = empty_step();
  CHECK(player.reset(seed, &step) == TR_OK);
  for (uint64_t turn = 0; step.ending == TR_RUNNING; ++turn) {
    CHECK(turn < 16);
    CHECK(step.text.bytes > 0);
    episode.text += copy(step.text);
    const uint64_t random = seed * 100 + turn;
    const std::string action =
        is_demonstrated ? player.demonstrate(random) : player.sample_action(random);
    episode.text += action;
    step = empty_step();
    CHECK(player.step(action, &step) == TR_OK);
    episode.reward += step.reward;
  }
  episode.ending = step.ending;
  episode.success = metric_of(step, "success");
  episode.turns = metric_of(step, "turns");
  episode.evidence = copy(step.evidence);
  return episode;
}

void the_library_names_a_maze_and_a_reward() {
  const tr_library& library = maze_library();
  CHECK(library.abi == TR_ABI);
  CHECK(TR_HAS(&library, rewards));
  CHECK(std::string(library.environments[0]->name) == "maze");
  CHECK(library.environments[1] == nullptr);
  CHECK(std::string(library.rewards[0]->name) == "short_way");
  CHECK(library.rewards[1] == nullptr);
}

void a_seed_gives_the_same_episode_and_another_seed_another_one() {
  Player one, other;
  int different = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Episode first = play(one, seed, false), again = play(other, seed, false);
    CHECK(first.text == again.text);
    CHECK(first.reward == again.reward);
    CHECK(first.ending == again.ending);
    different += first.text != play(one, seed + 1, false).text;
  }
  CHECK(different > 40);
}

// A library of another compiler must not play another maze.
void a_seed_gives_the_same_maze_under_each_compiler() {
  Player player;
  const std::vector<std::string> expected = {"S E right left > ", "S - down left > ",
                                             "S W down left > "};
  for (uint64_t seed = 0; seed < expected.size(); ++seed) {
    tr_step step = empty_step();
    CHECK(player.reset(seed, &step) == TR_OK);
    if (copy(step.text) != expected[seed])
      std::fprintf(stderr, "seed %d: %s\n", static_cast<int>(seed), copy(step.text).c_str());
    CHECK(copy(step.text) == expected[seed]);
  }
}

void the_demonstrator_reaches_the_exit() {
  Player player;
  int exits = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Episode episode = play(player, seed, true);
    CHECK((episode.ending == TR_TERMINATED) == (episode.success == 1));
    CHECK(episode.reward == episode.success);
    exits += episode.success == 1;
  }
  // Three of ten of its words are random, so it is now and then too late.
  std::printf("the demonstrator finds the exit of %d mazes of 100\n", exits);
  CHECK(exits >= 80);
}

// All that the policy can see and say is in the vocabulary, cut at blanks and before a newline.
void the_vocabulary_has_every_word() {
  Player player;
  std::vector<std::string> words;
  for (const char* const* word = player.info().vocabulary; *word; ++word) words.push_back(*word);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string word;
    for (const char letter : play(player, seed, false).text + " ") {
      if (letter != ' ' && letter != '\n') {
        word += letter;
        continue;
      }
      bool known = word.empty();
      for (const std::string& other : words) known = known || word == other;
      if (!known) std::fprintf(stderr, "not in the vocabulary: %s\n", word.c_str());
      CHECK(known);
      word.clear();
    }
  }
}

void a_step_outside_of_an_episode_is_misuse() {
  Player player;
  tr_step step = empty_step();
  CHECK(player.step("up\n", &step) == TR_MISUSE);
  CHECK(step.reason.bytes > 0);
  CHECK(player.cut(&step) == TR_MISUSE);

  play(player, 3, true);
  step = empty_step();
  CHECK(player.step("up\n", &step) == TR_MISUSE);
  CHECK(player.reset(3, &step) == TR_OK);
}

void a_cut_truncates_and_ends_the_episode() {
  Player player;
  tr_step step = empty_step();
  CHECK(player.reset(5, &step) == TR_OK);
  CHECK(player.cut(&step) == TR_OK);
  CHECK(step.ending == TR_TRUNCATED);
  CHECK(metric_of(step, "success") == 0);
  CHECK(player.step("up\n", &step) == TR_MISUSE);
}

void the_reward_scores_the_evidence_of_an_episode() {
  Player player("short_way");
  CHECK(std::string(player.info().reward) == "short_way");
  const Episode episode = play(player, 1, true);
  CHECK(episode.reward == 0);  // the judge gives it

  const tr_reward_type& type = *maze_library().rewards[0];
  tr_reward* reward = nullptr;
  tr_text reason{};
  CHECK(type.create(nullptr, nullptr, 0, &reward, &reason) == TR_OK);
  tr_score score{};
  score.size = sizeof score;
  CHECK(type.score(reward, view(episode.evidence), 1000000000, &score) == TR_OK);
  CHECK(episode.success == 1 ? score.reward > 0 && score.reward <= 1 : score.reward == 0);
  CHECK(type.score(reward, view("{}"), 1000000000, &score) == TR_NOT_DECIDED);
  type.destroy(reward);
}

}  // namespace

int main() {
  the_library_names_a_maze_and_a_reward();
  a_seed_gives_the_same_episode_and_another_seed_another_one();
  a_seed_gives_the_same_maze_under_each_compiler();
  the_demonstrator_reaches_the_exit();
  the_vocabulary_has_every_word();
  a_step_outside_of_an_episode_is_misuse();
  a_cut_truncates_and_ends_the_episode();
  the_reward_scores_the_evidence_of_an_episode();
}
