// The words of messages and tools, marked where a special token would lie over them: a character
// that no text has goes into each place, through the template, and comes out as a byte offset
// (text::EncodeOptions::literal).
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace::chat {

// Texts that others may not write: those of special tokens, and in messages of tools also those of
// tokens that stand around calls, their results and thoughts.
struct Forbidden {
  std::vector<std::string> always = {};
  std::vector<std::string> to_tools = {};  // all of `always` too
};

// Puts markers into the strings and keys of messages and of the schemas of tools (or null), which
// become UTF-8. Not into roles, nor into keys that are names (letters, digits, '_', '-', '.'):
// templates compare them with their own words. Gives back the marker; empty: none was needed.
// Throws UserError for a role that is no name, and for text that has all characters that could be
// a marker.
std::string mark(nlohmann::ordered_json& messages, nlohmann::ordered_json& tools,
                 const Forbidden& forbidden);

// Takes the markers out, also those that JSON of ASCII has escaped; where they stood, ascending.
std::vector<size_t> take_out(std::string& text, const std::string& marker);

}  // namespace tailrace::chat
