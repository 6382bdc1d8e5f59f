// The content of a folder that should be a Hugging Face model, beside its config and its weights.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tailrace {

// How many ids DIR/tokenizer.json has: its largest one and 1. 0: there is no such file, or it lists
// no tokens; core/text says what is wrong with it. Throws UserError where it is no JSON.
int64_t num_tokenizer_ids(const std::filesystem::path& directory);

// Throws UserError where the folder has the config of an adapter beside that of a model:
// transformers would load the adapter, and the logits would be others.
void refuse_adapter(const std::filesystem::path& directory);

// A hint at what `directory` is instead of a model with config.json and safetensors weights, and
// what to do about it: an id of a hub, an adapter, a GGUF file, pickled weights. Sentences that
// follow another one; empty: nothing that is known.
std::string folder_hint(const std::filesystem::path& directory);

}  // namespace tailrace
