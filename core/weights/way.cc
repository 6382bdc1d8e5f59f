#include "core/weights/way.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/base/digest.h"
#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

int64_t size_of_file(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(size);
}

using Stored = std::map<int64_t, StoredVersion>;

// Whether a delta between the two is there, or can be made: only of neighbours, the others are for
// who stayed behind.
bool leads_on(const Stored& stored, int64_t from, int64_t to) {
  const StoredVersion& version = stored.at(to);
  if (std::ranges::find(version.deltas, from) != version.deltas.end()) return true;
  const auto before = stored.find(from);
  return before != stored.end() && std::next(before)->first == to && version.is_whole &&
         before->second.is_whole;
}

// Versions one behind the other from `from` to `to`, by the fewest deltas.
std::vector<int64_t> chain_between(const Stored& stored, int64_t from, int64_t to) {
  std::map<int64_t, int64_t> next;
  std::vector<int64_t> reached = {to};
  for (size_t i = 0; i < reached.size() && !next.contains(from); ++i) {
    if (!stored.contains(reached[i])) continue;
    for (const auto& [before, version] : stored)
      if (before != to && leads_on(stored, before, reached[i]) &&
          next.try_emplace(before, reached[i]).second)
        reached.push_back(before);
  }
  if (!next.contains(from)) return {};
  std::vector<int64_t> chain = {from};
  while (chain.back() != to) chain.push_back(next.at(chain.back()));
  return chain;
}

}  // namespace

double cost_of(Way way, const WayFacts& facts) {
  const auto over_link = [&](int64_t bytes) {
    const auto b = static_cast<double>(bytes);
    return facts.link_bytes_per_s > 0 ? b / facts.link_bytes_per_s : b;
  };
  // Where bytes alone count the rest costs nothing.
  const auto of_dense = [&](double speed) {
    return facts.link_bytes_per_s > 0 ? static_cast<double>(facts.dense_bytes) / speed : 0.0;
  };
  switch (way) {
    case Way::kWhole:
      return over_link(facts.dense_bytes);
    case Way::kDirect:
      return over_link(facts.direct_bytes.value_or(facts.dense_bytes)) +
             of_dense(kApplyBytesPerSecond) +
             (facts.direct_is_made ? 0 : of_dense(kEncodeBytesPerSecond));
    case Way::kChain:
      return over_link(
                 std::accumulate(facts.chain_bytes.begin(), facts.chain_bytes.end(), int64_t{0})) +
             static_cast<double>(facts.chain_bytes.size()) * of_dense(kApplyBytesPerSecond) +
             static_cast<double>(facts.chain_to_encode) * of_dense(kEncodeBytesPerSecond);
  }
  return 0;
}

Way cheapest_way(const WayFacts& facts) {
  Way best = Way::kWhole;
  const auto consider = [&](Way way) {
    if (cost_of(way, facts) < cost_of(best, facts)) best = way;
  };
  if (facts.direct_bytes) consider(Way::kDirect);
  if (!facts.chain_bytes.empty()) consider(Way::kChain);
  return best;
}

std::string way_name(const WayRequest& request) {
  return fmt::format("p{}-v{}.way-{}-{}-{}", request.policy, request.version, request.root,
                     request.from, request.link_mbit);
}

std::optional<WayRequest> parse_way_name(std::string_view name) {
  const auto take = [&](std::string_view prefix) {
    const bool is_there = name.starts_with(prefix);
    if (is_there) name.remove_prefix(prefix.size());
    return is_there;
  };
  const auto take_number = [&](auto& number) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || number < 0) return false;
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    return true;
  };
  const auto take_digest = [&](Digest& digest) {
    digest = name.substr(0, kDigestDigits);
    if (!is_digest(digest)) return false;
    name.remove_prefix(kDigestDigits);
    return true;
  };
  WayRequest request;
  const bool fits = take("p") && take_number(request.policy) && take("-v") &&
                    take_number(request.version) && take(".way-") && take_digest(request.root) &&
                    take("-") && take_digest(request.from) && take("-") &&
                    take_number(request.link_mbit) && name.empty();
  return fits ? std::optional(std::move(request)) : std::nullopt;
}

Result<fs::path> next_on_way(const fs::path& folder, const WayRequest& request,
                             const std::stop_token& stop) {
  const auto& [policy, version, root, from, link_mbit] = request;
  Stored stored;
  std::optional<int64_t> base;
  for (const StoredVersion& one : list_versions(folder)) {
    if (one.policy != policy) continue;
    stored[one.version] = one;
    const auto its = root_of(folder / manifest_name(policy, one.version));
    if (its == from) base = one.version;
    if (one.version == version && its != root)
      return Failure{fmt::format("version {} has another root by now", version)};
  }
  const auto wanted = stored.find(version);
  if (wanted == stored.end() || !wanted->second.is_whole)
    return Failure{fmt::format("version {} is not there any more", version)};
  fs::path whole = folder / payload_name(manifest_name(policy, version));
  if (!base || *base == version) return whole;

  WayFacts facts{.dense_bytes = size_of_file(whole),
                 .link_bytes_per_s = static_cast<double>(link_mbit) * 1e6 / 8};
  const auto delta_bytes = [&](int64_t a, int64_t b) {
    return size_of_file(folder / delta_name(policy, a, b));
  };
  // An unknown size, of a delta not made yet, is taken for the mean of the known ones.
  int64_t known = 0, sum = 0;
  for (const auto& [number, one] : stored)
    for (const int64_t before : one.deltas) {
      ++known;
      sum += delta_bytes(before, number);
    }
  const int64_t expected = known > 0 ? sum / known : facts.dense_bytes / 3;
  const std::vector<int64_t> chain = chain_between(stored, *base, version);
  for (size_t i = 1; i < chain.size(); ++i) {
    const int64_t bytes = delta_bytes(chain[i - 1], chain[i]);
    facts.chain_bytes.push_back(bytes > 0 ? bytes : expected);
    facts.chain_to_encode += bytes > 0 ? 0 : 1;
  }
  if (const int64_t bytes = delta_bytes(*base, version); bytes > 0) {
    facts.direct_bytes = bytes;
    facts.direct_is_made = true;
  } else if (stored.at(*base).is_whole) {
    // Changes of several steps fall on each other.
    const int64_t all =
        std::accumulate(facts.chain_bytes.begin(), facts.chain_bytes.end(), int64_t{0});
    facts.direct_bytes = chain.size() > 2 ? all * 2 / 3 : expected;
  }
  // One whose ends have given up their payloads is taken as it is: who applies it proves it.
  const auto delta_between = [&](int64_t a, int64_t b) -> Result<fs::path> {
    if (!stored.at(a).is_whole || !stored.at(b).is_whole) return folder / delta_name(policy, a, b);
    return make_delta(folder, policy, a, b, {.link_bytes_per_s = facts.link_bytes_per_s}, stop);
  };
  switch (cheapest_way(facts)) {
    case Way::kWhole:
      return whole;
    case Way::kDirect:
      return delta_between(*base, version);
    case Way::kChain:
      return delta_between(chain[0], chain[1]);
  }
  return whole;
}

}  // namespace tailrace
