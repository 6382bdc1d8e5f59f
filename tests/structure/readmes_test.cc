// Keeps the maps of the READMEs true: the one at the root names the rooms of each folder, and that
// of a folder names its rooms and the units of those that it describes unit by unit.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TAILRACE_SOURCE_DIR;
const std::vector<std::string> kFolders = {"kernels", "core",      "sandbox", "reward", "rollout",
                                           "trainer", "scheduler", "cli",     "bench"};
// The READMEs of these describe a room as a whole.
const std::set<std::string> kWithoutUnits = {"kernels", "core", "bench"};

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

std::vector<std::string> read_cells(const std::string& line) {
  static const std::regex cell(R"(\| (.*?) ?(?=\|))");
  std::vector<std::string> cells;
  for (std::sregex_iterator it(line.begin(), line.end(), cell), end; it != end; ++it)
    cells.push_back((*it)[1]);
  return cells;
}

std::vector<Table> read_tables(const fs::path& page) {
  std::vector<Table> tables;
  std::ifstream file(page);
  bool in_table = false;
  for (std::string line; std::getline(file, line);) {
    const bool is_row = line.starts_with("| ");
    if (is_row && !in_table)
      tables.push_back({read_cells(line), {}});
    else if (is_row && !line.starts_with("| ---"))
      tables.back().rows.push_back(read_cells(line));
    in_table = is_row;
  }
  return tables;
}

// The names of a first cell: "batch", "`loss/`", "`kernels/`, `run/`".
std::vector<std::string> names_of(const std::string& cell) {
  static const std::regex name(R"([^`, ][^`,]*)");
  std::vector<std::string> names;
  for (std::sregex_iterator it(cell.begin(), cell.end(), name), end; it != end; ++it) {
    std::string found = it->str();
    if (found.ends_with('/')) found.pop_back();
    names.push_back(found);
  }
  return names;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions = {".h", ".cc", ".cu", ".cuh", ".inc"};
  return extensions.contains(path.extension().string());
}

// A unit is x.h with its x.cc.
std::set<std::string> units_of(const fs::path& room) {
  std::set<std::string> units;
  for (const auto& entry : fs::directory_iterator(room))
    if (is_source(entry.path())) units.insert(entry.path().stem().string());
  return units;
}

// The folders with sources below `folder`, as paths from there.
std::set<std::string> rooms_of(const std::string& folder) {
  std::set<std::string> rooms;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    const auto room = fs::relative(entry.path().parent_path(), kRoot / folder).string();
    if (is_source(entry.path()) && room != ".") rooms.insert(room);
  }
  return rooms;
}

TEST(Readmes, TheMapOfTheRootNamesEachRoomAndNothingElse) {
  const std::regex link(R"(\[`([a-z]+)`\]\(([^)]*)\))"), name(R"(`([^`]*)`)");
  std::map<std::string, std::string> holds;
  for (const Table& table : read_tables(kRoot / "README.md")) {
    if (table.head[0] != "folder") continue;
    for (const auto& row : table.rows) {
      for (std::sregex_iterator it(row[0].begin(), row[0].end(), link), end; it != end; ++it) {
        EXPECT_TRUE(fs::exists(kRoot / (*it)[2].str())) << it->str();
        holds[(*it)[1]] = row[1];
      }
    }
  }
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    if (!fs::exists(entry.path() / "README.md")) continue;
    EXPECT_TRUE(holds.contains(entry.path().filename().string()))
        << "the map of README.md lacks " << entry.path().filename();
  }
  for (const std::string& folder : kFolders) {
    if (folder == "bench") continue;  // shares its row, and has no rooms that anything links
    ASSERT_TRUE(holds.contains(folder));
    const std::string& cell = holds[folder];
    const auto rooms = rooms_of(folder);
    std::set<std::string> named;
    for (std::sregex_iterator it(cell.begin(), cell.end(), name), end; it != end; ++it)
      named.insert((*it)[1]);
    for (const std::string& room : rooms)
      EXPECT_TRUE(named.contains(room)) << "README.md, row of " << folder << ", lacks " << room;
    for (const std::string& room : named)
      EXPECT_TRUE(rooms.contains(room))
          << "README.md, row of " << folder << ": there is no " << folder << "/" << room;
  }
}

// A table whose first heading is "here" or "room" names rooms of the folder and its own units; one
// whose first heading is "`engine/`" names units of that room.
TEST(Readmes, EachFolderNamesItsRoomsAndUnitsAndNothingElse) {
  for (const std::string& folder : kFolders) {
    const std::string page = folder + "/README.md";
    std::map<std::string, std::set<std::string>> named;  // by room; "" is the folder itself
    for (const Table& table : read_tables(kRoot / page)) {
      const std::string& heading = table.head[0];
      const bool is_of_room = heading.starts_with('`') && heading.ends_with("/`");
      if (!is_of_room && heading != "here" && heading != "room") continue;
      const std::string room = is_of_room ? names_of(heading).at(0) : "";
      EXPECT_TRUE(fs::is_directory(kRoot / folder / room)) << page << ": there is no " << heading;
      if (is_of_room) named[""].insert(room);
      for (const auto& row : table.rows) {
        for (const std::string& name : names_of(row[0])) {
          if (name == "this folder") continue;
          named[room].insert(fs::path(name).stem());
          if (name.find('/') != std::string::npos) named[room].insert(name);
          const fs::path path = kRoot / folder / room / name;
          EXPECT_TRUE(fs::exists(path) || units_of(path.parent_path()).contains(path.filename()))
              << page << " names " << name << ", and there is none in " << folder << "/" << room;
        }
      }
    }
    std::set<std::string> here = units_of(kRoot / folder);
    for (const std::string& room : rooms_of(folder)) {
      here.insert(room);
      const auto units = units_of(kRoot / folder / room);
      if (!named.contains(room)) {
        EXPECT_TRUE(kWithoutUnits.contains(folder) || units.size() == 1)
            << page << " has no table of the units of " << room << "/";
        continue;
      }
      for (const std::string& unit : units)
        EXPECT_TRUE(named[room].contains(unit))
            << page << ", table of " << room << "/, lacks " << unit;
    }
    for (const std::string& name : here)
      EXPECT_TRUE(named[""].contains(name)) << page << " lacks " << name;
  }
}

}  // namespace
}  // namespace tailrace
