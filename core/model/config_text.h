// The text of a config.json, changed where a person would change it.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// `text`, a JSON object that is not empty, with another dtype of the files, under the name that it
// has there (torch_dtype, or dtype since transformers 4.56). Of the rest every byte stays: keys
// that nobody here knows, and numbers as they are written.
std::string with_dtype(std::string_view text, std::string_view dtype);

}  // namespace tailrace
