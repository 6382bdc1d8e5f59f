// The samples of the runs of one workload and seed: what was sampled under a name in one run is
// what was sampled under that name in every other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "cli/simulate/recorded_episodes.h"

namespace tailrace {

class ForcedSamples {
 public:
  // Reads the samples of a run that is over. Throws WrongResult that names the first sample whose
  // tokens, log-probabilities or turns are not those of a run before. Returns how many samples it
  // compared.
  int64_t add(const std::string& name, const std::filesystem::path& run);

  // All of them, a line each (recorded_episodes.h), with the times of the first run that had them.
  // Throws UserError.
  void write(const std::filesystem::path& file) const;

 private:
  std::map<MemberId, RecordedEpisode> episodes_;
  std::map<MemberId, std::string> first_;  // name of the run that each is of
};

}  // namespace tailrace
