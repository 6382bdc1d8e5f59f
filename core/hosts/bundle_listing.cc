#include "core/hosts/bundle_listing.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/weights/version_folder.h"
#include "core/weights/way.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxListingBytes = int64_t{16} << 20;
constexpr int kListingVersion = 1;

// A path below a folder that cannot lead out of it.
bool is_place(const std::string& text) {
  const fs::path path(text);
  return !text.empty() && text.size() < 512 && path.is_relative() &&
         std::ranges::none_of(path,
                              [](const fs::path& part) { return part == ".." || part == "."; });
}

// One name of a file in a folder.
bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

}  // namespace

std::string to_json(const BundleListing& listing) {
  nlohmann::ordered_json json = {{"version", kListingVersion},
                                 {"files", nlohmann::ordered_json::array()},
                                 {"keys", nlohmann::ordered_json::array()}};
  for (const BundleFile& file : listing.files)
    json["files"].push_back({{"place", file.place},
                             {"digest", file.digest},
                             {"bytes", file.bytes},
                             {"header", file.is_header}});
  for (const auto& [key, place] : listing.keys) json["keys"].push_back({key, place});
  return json.dump(1) + "\n";
}

Result<BundleListing> read_listing(const fs::path& file) {
  const auto refuse = [&](const std::string& why) {
    return Failure{fmt::format("{}: {}", file.string(), why)};
  };
  try {
    const nlohmann::json json = read_json_object(file, kMaxListingBytes);
    if (json.at("version").get<int>() != kListingVersion) return refuse("of another build");
    BundleListing listing;
    for (const auto& item : json.at("files")) {
      BundleFile found{.place = item.at("place").get<std::string>(),
                       .digest = item.at("digest").get<std::string>(),
                       .bytes = item.at("bytes").get<int64_t>(),
                       .is_header = item.at("header").get<bool>()};
      if (!is_place(found.place) || found.bytes < 0 || !is_digest(found.digest))
        return refuse(fmt::format("'{}' is no file of a bundle", found.place));
      listing.files.push_back(std::move(found));
    }
    for (const auto& item : json.at("keys")) {
      const auto key = item.at(0).get<std::string>(), place = item.at(1).get<std::string>();
      if (!is_place(place)) return refuse(fmt::format("'{}' is no place of a bundle", place));
      listing.keys.emplace_back(key, place);
    }
    return listing;
  } catch (const nlohmann::json::exception& error) {
    return refuse(error.what());
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

std::optional<SharedFile> find_weight_file(const fs::path& folder, const std::string& file) {
  if (!is_file_name(file)) return std::nullopt;
  if (auto way = parse_way_name(file))
    return SharedFile{.make = [folder, way = *std::move(way)](const std::stop_token& stop) {
      return next_on_way(folder, way, stop);
    }};
  SharedFile shared{folder / file};
  // A manifest is fetched before its payload, which may be let go meanwhile.
  if (fs::path(file).extension() == ".json")
    shared.next = std::string(kWeightFiles) + payload_name(file);
  return shared;
}

}  // namespace tailrace
