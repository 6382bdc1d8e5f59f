// The known name that a mistyped one was probably meant to be, for error messages.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment). O(|a| * |b|).
int edit_distance(std::string_view a, std::string_view b);

// The name with the smallest edit distance, the first of equals; empty when none is so near that
// `name` may be a slip of the pen for it, as naming another one would mislead. Of dotted names the
// last parts are compared too, so that a key in the wrong section finds its own.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

// The dotted keys that `name` may be meant for: nearest_name(), and where that is none or one of
// them those whose last part has that of `name` in it from the begin of a word on ("algo.whiten" is
// a part of "algo.whiten_advantages"): of the section that was named, or else of all others. At
// most four, in the order of `names`: of more, the part says too little.
std::vector<std::string> nearest_keys(std::string_view name, std::span<const std::string> names);

// The end of a sentence about a name that is not known: "; did you mean 'math'?", or "." where none
// is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

// For a path that does not exist: "; the nearest is models/stories260K" where something there has a
// name like the first part that is missing; else empty.
std::string nearest_path_hint(const std::filesystem::path& path);

// The end of the message about a file that cannot be opened: nearest_path_hint(); where nothing is
// near, `otherwise`; empty for one that is there, whose message says what is wrong with it.
std::string missing_file_hint(
    const std::filesystem::path& path,
    std::string_view otherwise = "; correct the path, or put the file there");

// For a path that does not exist and may be an id of a hub ("Qwen/Qwen2.5-0.5B", relative or made
// absolute), since its first name is no folder either: a line that says that nothing is fetched and
// how to download it. Begins with the end of the line before; else empty.
std::string hub_id_hint(const std::filesystem::path& path);

}  // namespace tailrace
