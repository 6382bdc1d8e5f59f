// The outcome of each episode of a simulated run, whoever plays it and when: how much is
// said, how long the environment takes, what comes out. A source draws it from the name of the
// sample, as the engine draws its tokens (design section 6): attempts of one sample say the same,
// launches and epochs do not. How long others take (environments, verifiers) may differ by attempt,
// or who ran into a deadline once would do so each time.
//
// Thread: any (const).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/base/ids.h"

namespace tailrace::simulator {

struct Turn {
  int64_t tokens = 1;      // that the policy samples; 0: its context is full
  double env_seconds = 0;  // until the environment has answered
  int64_t env_tokens = 0;  // of its answer
};

struct Episode {
  int64_t prompt_tokens = 0;
  double reset_seconds = 0;
  std::vector<Turn> turns;  // at least one
  bool truncated = false;   // its last turn ran to a limit
  bool broken = false;      // nobody can play it or, where a verifier is to score it, score it
  double reward = 0;
  double verify_seconds = 0;  // 0: the environment gives the reward itself
  int64_t tokens() const;     // sampled
  int64_t context() const;    // all of them: prompt, answers, observations

  // Ends it where `room` > 0 tokens follow its prompt, observations included, as a run does: what
  // is longer is truncated. Whether it was.
  bool cut(int64_t room);
};

class EpisodeSource {
 public:
  virtual ~EpisodeSource() = default;
  // `attempt` counts from 1.
  virtual Episode draw(Lane lane, const MemberId& member, int32_t attempt) const = 0;
};

// A span of time or a number by its distribution.
//   constant   always `mean`
//   normal     `mean`, standard deviation `spread`, cut at 0
//   lognormal  median `mean`, sigma `spread` (of the logarithm)
struct Distribution {
  enum class Kind : uint8_t { kConstant, kNormal, kLogNormal };
  Kind kind = Kind::kConstant;
  double mean = 0, spread = 0;
  double largest = 0;  // larger values are this one; 0: none is
};

// Lengths in two levels, as RollPacker's figures have them (arXiv 2509.21009): a prompt has a
// median exp(log(median) + sigma_prompt * N) and a chance to run to the limit, drawn from a Beta
// distribution of mean `endless` and concentration `endless_concentration`; a response runs to the
// limit with that chance, else it is log-normal around the prompt's median with sigma_response.
// With several turns the response is divided evenly over them.
struct LengthModel {
  double median = 512;
  double sigma_prompt = 0, sigma_response = 0;
  double endless = 0, endless_concentration = 10;
  int64_t limit = 0;  // tokens of a response; 0: none
};

struct EpisodeModel {
  int64_t prompt_tokens = 0;
  LengthModel length = {};
  Distribution turns = {Distribution::Kind::kConstant, 1};
  int64_t env_tokens = 0;  // a turn
  int64_t room = 0;        // tokens behind the prompt, observations included; 0: any number
  Distribution reset = {}, env = {};
  Distribution verify = {};  // kind constant and mean 0: the environment gives the reward
  double success = 0.5;      // chance of reward 1 rather than 0
};

class DrawnEpisodes final : public EpisodeSource {
 public:
  // One model a dataset.
  DrawnEpisodes(std::vector<EpisodeModel> models, uint64_t seed)
      : models_(std::move(models)), seed_(seed) {}
  Episode draw(Lane lane, const MemberId& member, int32_t attempt) const override;
  const std::vector<EpisodeModel>& models() const { return models_; }

 private:
  std::vector<EpisodeModel> models_;
  uint64_t seed_;
};

// Episodes that were recorded: a sample for training that the record names is that one, with the
// times that it had, in every attempt. Any other is drawn from the record by its name: of its
// prompt where there are some, else of all.
class ReplayedEpisodes final : public EpisodeSource {
 public:
  struct Record {
    MemberId member;
    Episode episode;
  };
  // Throws UserError when there are none.
  ReplayedEpisodes(std::vector<Record> records, uint64_t seed);
  Episode draw(Lane lane, const MemberId& member, int32_t attempt) const override;

 private:
  using Prompt = std::tuple<int32_t, int64_t>;  // dataset, prompt
  std::vector<Record> records_;
  std::map<MemberId, size_t> by_name_;
  std::map<Prompt, std::vector<size_t>> by_prompt_;
  uint64_t seed_;
};

}  // namespace tailrace::simulator
