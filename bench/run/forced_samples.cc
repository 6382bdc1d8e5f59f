#include "bench/run/forced_samples.h"

#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {

int64_t ForcedSamples::add(const std::string& name, const std::filesystem::path& run) {
  int64_t compared = 0;
  for (auto& [member, episode] : read_recorded_episodes(run)) {
    const auto known = episodes_.find(member);
    if (known == episodes_.end()) {
      first_[member] = name;
      episodes_.emplace(member, std::move(episode));
      continue;
    }
    const RecordedEpisode& first = known->second;
    require(first.turns.size() == episode.turns.size() && first.digest == episode.digest,
            "sample {} is not forced: it has {} tokens in {} turns in {}, and {} in {} in {}, or "
            "other tokens or log-probabilities",
            to_string(member), first.num_sampled(), first.turns.size(), first_.at(member),
            episode.num_sampled(), episode.turns.size(), name);
    ++compared;
  }
  return compared;
}

void ForcedSamples::write(const std::filesystem::path& file) const {
  std::string lines;
  for (const auto& [member, episode] : episodes_) lines += format_recorded_episode(episode) + "\n";
  if (auto written = write_file_atomic(file, lines); !written)
    throw UserError("{}", written.failure().message);
}

}  // namespace tailrace
