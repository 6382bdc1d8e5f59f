#include "core/text/pattern.h"

namespace tailrace::text {

Pattern::Pattern(const JsonPart& part) {
  if (part.has("Regex")) {
    regex_ = std::make_unique<Regex>(part.text("Regex"), part.where());
  } else {
    literal_ = part.has("String") ? part.text("String") : part.text();
    // find_all() finds an empty text everywhere and would never move on.
    if (literal_.empty()) part.refuse("a pattern that is not empty");
  }
}

void Pattern::find_all(std::string_view text, std::vector<Span>& out) const {
  if (regex_ != nullptr) return regex_->find_all(text, out);
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    out.push_back({at, at + literal_.size()});
  }
}

std::string Pattern::replace_all(std::string text, std::string_view content) const {
  std::vector<Span> matches;
  find_all(text, matches);
  if (matches.empty()) return text;
  std::string out;
  size_t done = 0;
  for (const Span& match : matches) {
    out.append(text, done, match.begin - done);
    out += content;
    done = match.end;
  }
  out.append(text, done);
  return out;
}

}  // namespace tailrace::text
