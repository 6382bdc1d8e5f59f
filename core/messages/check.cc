#include "core/messages/check.h"

#include <cmath>

#include "core/base/printable.h"
#include "core/config/options.h"

namespace tailrace::wire {
namespace {

constexpr size_t kMaxSiteName = 64;
// Twice what a digest has, so that a longer one may come; without a bound it would go into logs and
// the journal as it is.
constexpr size_t kMaxDigest = 64;
constexpr size_t kMaxFileName = 255;

}  // namespace

bool is_site_name(std::string_view name) {
  return is_item_name(name) && name.size() <= kMaxSiteName;
}

bool is_host_name(std::string_view name) {
  std::string dashed(name.substr(0, kMaxSiteName + 1));
  std::ranges::replace(dashed, '.', '-');
  return !name.starts_with('.') && is_site_name(dashed);
}

void Check::digest(const Digest& digest) {
  require(digest.size() <= kMaxDigest, "a digest of {} characters", digest.size());
}

// One NaN would become the mean and the advantages of its whole group.
void Check::finite(double value, std::string_view what) {
  require(std::isfinite(value), "{} {}", what, value);
}

void Check::file_name(const std::string& name) {
  const bool is_one = !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
                      name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  require(is_one, "file name '{}'", shown_name(name));
}

void Check::site_name(const std::string& name, std::string_view what) {
  require(name.empty() || is_site_name(name), "{} '{}'", what, shown_name(name));
}

void Check::host_name(const std::string& name) {
  require(name.empty() || is_host_name(name), "host '{}'", shown_name(name));
}

void Check::line(std::string& text, size_t longest) {
  cut(text, longest);
  text = printable(text);
  std::ranges::replace(text, '\n', ' ');
}

void Check::look(LeaseId& id) {
  const MemberId& m = id.member;
  const int64_t least =
      std::ranges::min({int64_t{m.policy}, int64_t{m.dataset}, m.epoch, m.prompt, int64_t{m.launch},
                        int64_t{m.member}, int64_t{id.attempt}});
  // A list has up to a million ids, and the words for one cost more than reading it.
  if (least < 0) require(false, "negative part in id {}", to_string(id));
}

void Check::look(BodyId& id) {
  look(id.lease);
  at_least(0, id.turns, "turns");
}

void Check::look(MetricList& metrics) {
  require(metrics.size() <= kMaxMetrics, "{} metrics", metrics.size());
  for (const auto& [name, value] : metrics)
    require(name.size() <= kMaxMetricName, "a metric's name of {} characters", name.size());
}

}  // namespace tailrace::wire
