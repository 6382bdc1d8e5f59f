// Whether the fields of a message from outside make sense. Every field list passes by, for the
// ranges that come with a type (ids, metrics); a message with others says them beside its fields,
// in `void check(Check& c)`. Texts for people are cut there instead of refused.
//
// Thread: caller locks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/archive.h"
#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/base/metric_list.h"

namespace tailrace::wire {

// Whether it names a pool, a cluster or a kind of hardware: letters, digits, _ and -, at most 64.
bool is_site_name(std::string_view name);
// Whether it names a machine: the same, with dots behind the first character.
bool is_host_name(std::string_view name);

class Check {
 public:
  // Why the message is refused, by the first thing that is wrong; empty: it is sound.
  const std::string& fault() const { return fault_; }

  template <class... Args>
  void require(bool is_so, fmt::format_string<Args...> format, Args&&... args) {
    if (!is_so && fault_.empty()) fault_ = fmt::format(format, std::forward<Args>(args)...);
  }
  void at_least(int64_t lowest, int64_t value, std::string_view what) {
    require(value >= lowest, "{} is {}", what, value);
  }
  void version_of(PolicyId policy, int64_t version) {
    at_least(0, policy, "policy");
    at_least(0, version, "version");
  }
  void version_of(PolicyId policy, int64_t version, const Digest& digest) {
    version_of(policy, version);
    this->digest(digest);
  }
  void digest(const Digest& digest);
  void finite(double value, std::string_view what);
  // A name below RUN/weights: it is joined to a path, so it must not lead out of the folder.
  void file_name(const std::string& name);
  // As is_site_name() and is_host_name() want them, or none.
  void site_name(const std::string& name, std::string_view what);
  void host_name(const std::string& name);
  // Bodies of attempts that are over, and none of the turns of one that goes on.
  void whole(const std::vector<BodyId>& bodies) {
    for (const BodyId& body : bodies) require(body.turns == 0, "{} turns of a body", body.turns);
  }
  void rank(int32_t rank, int32_t size) {
    require(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  }
  // For a person, who reads its beginning: it goes into logs and the journal.
  void cut(std::string& text, size_t longest = kMaxTextBytes) {
    if (text.size() > longest) text.resize(longest);
  }

  // cut() and made safe, as one line among others.
  void line(std::string& text, size_t longest);

  template <class... Ts>
  void operator()(Ts&... values) {
    (look(values), ...);
  }

  // The text of a gateway's refusal, or the last words of a program: enough for a person.
  static constexpr size_t kMaxTextBytes = 800;
  static constexpr size_t kMaxMetrics = 4096, kMaxMetricName = 256;

 private:
  // Not const, as field lists give them: a template for all types would be the better match.
  void look(LeaseId& id);
  void look(BodyId& id);
  void look(MetricList& metrics);
  template <class T>
  void look(std::vector<T>& list) {
    if constexpr (std::is_class_v<T>)
      for (T& item : list) look(item);
  }
  template <class T>
  void look(T& value) {
    if constexpr (requires { fields(value, *this); }) fields(value, *this);
  }

  std::string fault_;
};

}  // namespace tailrace::wire
