// The code blocks of a page of docs/, for tests that do what it says.
#pragma once

#include <string>
#include <vector>

namespace tailrace {

struct PageBlock {
  std::string language, text;
};

inline std::vector<PageBlock> blocks_of(const std::string& page) {
  std::vector<PageBlock> blocks;
  for (size_t at = page.find("```"); at != std::string::npos; at = page.find("```", at)) {
    const size_t line = page.find('\n', at), end = page.find("\n```", line);
    blocks.push_back({page.substr(at + 3, line - at - 3), page.substr(line + 1, end - line)});
    at = end + 4;
  }
  return blocks;
}

}  // namespace tailrace
