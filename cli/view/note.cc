#include "cli/view/note.h"

#include <algorithm>

namespace tailrace {

std::string note_lines(std::string_view note) {
  constexpr size_t kColumns = 100;
  constexpr std::string_view kLabel = "note:";
  std::string out(kLabel);
  size_t line = 0;  // where it begins
  while (!note.empty()) {
    const std::string_view word = note.substr(0, note.find(' '));
    note.remove_prefix(std::min(word.size() + 1, note.size()));
    const bool is_first = out.size() - line == kLabel.size();
    if (!is_first && out.size() - line + 1 + word.size() > kColumns) {
      out += '\n';
      line = out.size();
      out.append(kLabel.size(), ' ');
    }
    out += ' ';
    out += word;
  }
  return out + '\n';
}

}  // namespace tailrace
