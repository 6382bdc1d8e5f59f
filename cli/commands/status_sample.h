// One sample of a run: who sampled and scored it when, and its tokens as they were trained.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

namespace tailrace {

// Prints the sample of RUN that the words name ("prompt=12", "member=3"), also of a living run, for
// a person or as one JSON object with every digit. Throws UserError: no run, no such sample, words
// that name none or several.
void show_sample(const std::string& run, const std::vector<std::string>& sample, bool json);

}  // namespace tailrace
