#include "core/text/regex.h"

#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/oniguruma.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // backtracking steps of one match, about 0.1 s

}  // namespace

struct Regex::Impl {
  std::string where;
  pcre2_code* code = nullptr;
  bool jit = false;
  pcre2_match_context* context = nullptr;

  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, std::string where) : impl_(std::make_unique<Impl>()) {
  impl_->where = std::move(where);
  std::string ours = pcre2_pattern(pattern, impl_->where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (impl_->code == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw UserError("{}: the pattern '{}' is not a regular expression that Tailrace can use: {}",
                    impl_->where, shortened(pattern, kShownPatternBytes), message);
  }
  // Without permission to map executable memory this fails, and matching is only slower.
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;
  impl_->context = pcre2_match_context_create(nullptr);
  // A tokenizer file is data: its pattern may be one that backtracks for years.
  pcre2_set_match_limit(impl_->context, kMatchLimit);
}

Regex::~Regex() = default;

void Regex::find_all(std::string_view text, std::vector<Span>& out) const {
  struct FreeData {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  // Written while matching, and one Regex serves several threads. One a thread for all patterns:
  // only the bounds of the whole match are read, and a text has thousands of pieces.
  thread_local const std::unique_ptr<pcre2_match_data, FreeData> data(
      pcre2_match_data_create(1, nullptr));
  auto match_at = [&](size_t at) {
    auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // Checked once by the tokenizer; PCRE2 would look at the whole text again for every match.
    constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK;
    if (impl_->jit) {
      const int rc = pcre2_jit_match(impl_->code, subject, text.size(), at, kOptions, data.get(),
                                     impl_->context);
      if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    // The interpreter keeps its stack on the heap.
    return pcre2_match(impl_->code, subject, text.size(), at, kOptions | PCRE2_NO_JIT, data.get(),
                       impl_->context);
  };
  // As Oniguruma's iterator: a match of nothing is one, but not where the match before it ended.
  size_t last = text.npos;
  for (size_t at = 0; at <= text.size();) {
    int rc = match_at(at);
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0) {
      throw UserError("{}: the pattern gave up on a text of {} bytes (PCRE2 error {})",
                      impl_->where, text.size(), rc);
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    // A \K inside a lookahead can put the begin after the end.
    const bool forward = bounds[1] >= bounds[0] && bounds[0] >= at;
    if (forward && (bounds[1] > bounds[0] || bounds[1] != last)) {
      out.push_back({bounds[0], bounds[1]});
      at = last = bounds[1];
    } else {
      at = std::max<size_t>(at, bounds[1]);
      if (at >= text.size()) return;
      // On by a whole character: PCRE2 no longer checks that `at` is not inside of one.
      next_code_point(text, at);
    }
  }
}

}  // namespace tailrace::text
