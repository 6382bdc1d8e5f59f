// Whether the loss counts an answer of a supervised row: a flag of its message says so.
//
// Frameworks have their own names: weight (OpenAI), loss and loss_scale (ms-swift), train and
// training (axolotl), trainable (Tinker), masked (torchtune, where true leaves the answer out).
//
// Thread: any.
#pragma once

#include <cstddef>

#include <nlohmann/json_fwd.hpp>

namespace tailrace::chat {

// Without a flag answers count, and nothing else does. `number`: of the message, from 1, for
// errors. Throws UserError for a flag that is not true, false, 0 or 1, for one that asks for more
// than the message can give, for two that differ, and for a flag of another name: it would be
// passed over, and what it keeps out would be learned.
bool counts_in_loss(const nlohmann::ordered_json& message, size_t number);

}  // namespace tailrace::chat
