// The words of messages, marked where a special token would lie over them: a character that no text
// has goes into each place, through the template, and comes out as a byte offset
// (text::EncodeOptions::literal).
//
// Thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace::chat {

// `messages` with markers in their strings (not in their keys and roles), which have become UTF-8.
// `marker` says which one it is: empty where none was needed. Throws UserError for text that has
// all characters that could be one.
nlohmann::ordered_json mark(const nlohmann::ordered_json& messages,
                            std::span<const std::string> special, std::string& marker);

// Takes the markers out; where they stood, ascending.
std::vector<size_t> take_out(std::string& text, const std::string& marker);

}  // namespace tailrace::chat
