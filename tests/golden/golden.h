// Golden text: what a person has read once and found right, kept in a file under tests/golden/.
//
// A test that gives other text fails and shows the difference. `TEST_BINARY --update-golden` writes
// what its tests give now, `make update-golden` does so for all of them; `git diff` then shows what
// changed, and the commit says why.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tailrace {

// Fails the running test unless tests/golden/NAME holds exactly `text`.
void expect_golden(std::string_view name, const std::string& text);

std::filesystem::path golden_path(std::string_view name);

// Set by --update-golden.
bool updating_golden();

}  // namespace tailrace
