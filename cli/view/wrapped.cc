#include "cli/view/wrapped.h"

namespace tailrace {

std::string wrapped(std::string_view text, std::string_view label) {
  constexpr size_t kColumns = 100;
  const size_t room = kColumns - label.size();
  std::string out(label);
  while (text.size() > room) {
    size_t space = text.rfind(' ', room);
    // A word that is longer than a line is not cut: it may be a path or a key to copy.
    if (space == std::string_view::npos) space = text.find(' ');
    if (space == std::string_view::npos) break;
    out.append(text.substr(0, space)) += '\n';
    out.append(label.size(), ' ');
    text.remove_prefix(space + 1);
  }
  return out.append(text) + '\n';
}

}  // namespace tailrace
