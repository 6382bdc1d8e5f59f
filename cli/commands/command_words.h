// The command line of a program, as an option takes it in one text.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace tailrace {

// Its words, by its blanks.
inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

}  // namespace tailrace
