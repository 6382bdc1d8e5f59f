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

// `messages` with markers in their strings and keys, which have become UTF-8. Not in roles, nor in
// keys that are names (letters, digits, '_', '-', '.'): templates compare them with their own
// words. `marker` says which one it is: empty where none was needed. Throws UserError for a role
// that is no name, and for text that has all characters that could be a marker.
nlohmann::ordered_json mark(const nlohmann::ordered_json& messages,
                            std::span<const std::string> special, std::string& marker);

// Takes the markers out, also those that JSON of ASCII has escaped; where they stood, ascending.
std::vector<size_t> take_out(std::string& text, const std::string& marker);

}  // namespace tailrace::chat
