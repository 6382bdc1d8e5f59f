// What a folder that should be a Hugging Face model holds beside its config and its weights.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>

namespace tailrace {

// What `directory` is instead of a model with config.json and safetensors weights, and what to do
// about it: an id of a hub, an adapter, a GGUF file, pickled weights. Sentences that follow another
// one; empty: nothing that is known.
std::string folder_hint(const std::filesystem::path& directory);

}  // namespace tailrace
