// The option names of other frameworks that a config of ours accepts or answers: data for
// core/base/foreign_names.h. One file holds the rows of each framework; docs/coming-from.md shows
// all of them.
//
// A name is taken only where its value means the same here, samples against prompts and the place
// of a penalty included. Names that several frameworks share with one meaning have one row.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/foreign_names.h"

namespace tailrace {

// All rows; no two have one name.
std::span<const ForeignName> foreign_names();

// The names of a run that learns from sft.data alone: learning_rate is sft.optim.lr there.
std::span<const ForeignName> supervised_names();

// Whether a config is of such a run, as far as it says itself.
bool is_supervised(const ConfigNode& root);

// The names of each framework, in the order of the page.
std::vector<ForeignName> trl_names();
std::vector<ForeignName> verl_names();
std::vector<ForeignName> prime_rl_names();
std::vector<ForeignName> openrlhf_names();
std::vector<ForeignName> other_names();  // of ROLL, slime, miles, AReaL, NeMo RL, SkyRL and rLLM

// docs/coming-from.md, which `tailrace docs --names` writes.
std::string coming_from_page();

}  // namespace tailrace
