// A reward model made of the folder of a policy: its form and its weights.
//
// Thread: any.
#pragma once

#include <cstdint>

#include "core/model/model_config.h"
#include "core/model/model_form.h"
#include "core/model/parameters.h"

namespace tailrace {

// The form of the reward model: the policy's config.json with the other architecture, one label and
// a padding id, its files without a head. The new head comes into the last of them. `reward` is of
// reward_model_config().
ModelForm reward_model_form(const ModelForm& policy, const ModelConfig& reward);

// Its padding id: the policy's own, by config.json and then by generation_config.json, so that it
// is that of its tokenizer; else padding_of(). -1: none.
int64_t reward_padding(const ModelForm& policy, const ModelConfig& reward);

// The body of a policy, tensor by tensor; the head is 0.
void copy_reward_body(const Parameters& policy, Parameters& reward);

}  // namespace tailrace
