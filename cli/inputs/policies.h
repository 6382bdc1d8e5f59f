// The models of a run beside the one that it trains (`policies`): which of them teach, and whether
// they can.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/config/options.h"
#include "core/http/post.h"
#include "core/model/model_config.h"
#include "core/weights/frozen_scorer.h"

namespace tailrace {

// The teacher of algo.distill.
struct PlannedTeacher {
  FrozenModel model = {};
  int64_t top_k = 0;  // of its likeliest tokens that the loss reads; 0: none
};

// One of `policies` that a server has.
struct RemotePolicy {
  std::string name = {};
  http::Url url = {};
  std::string served_as = {}, key = {};
  int64_t top_k = 0, at_once = 0;
};

// The teacher behind an URL; nullopt: there is none. `policy`: the one that is trained.
std::optional<RemotePolicy> remote_teacher_of(const RunOptions& options, const ModelConfig& policy);

// Has it score some ids, so that one that does not work ends the launch and no sample: the words of
// this tokenizer, where it is there. Throws UserError about its key.
void try_remote_teacher(const RunOptions& options, const ModelConfig& policy,
                        const std::filesystem::path& tokenizer);

// Rules of the options alone. Throws UserError with the key.
void validate_policies(const RunOptions& options);

// All of them with their shapes, which are read; each is a teacher. `policy`: the one that is
// trained. Throws UserError about a key, where they do not fit each other.
std::vector<FrozenModel> frozen_models(const RunOptions& options, const ModelConfig& policy);
// Of these the teacher of what is sampled; nullopt: nobody is.
std::optional<PlannedTeacher> teacher_of(const RunOptions& options, const ModelConfig& policy);
// And those of stages that train on rows.
std::vector<FrozenModel> teachers_of_stages(const RunOptions& options, const ModelConfig& policy);

// Throws UserError where a token is another one for a teacher than in this tokenizer.
void require_teacher_vocabulary(const RunOptions& options, const std::filesystem::path& tokenizer);

// All that a score depends on.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder);

}  // namespace tailrace
