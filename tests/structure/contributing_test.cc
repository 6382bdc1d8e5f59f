// Keeps the pages for contributors true: each path, test program, test, command, make target, key
// and name of the code that CONTRIBUTING.md and SECURITY.md give is there.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const fs::path kRepository = TAILRACE_SOURCE_DIR;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The groups of all matches, the whole match first.
std::vector<std::vector<std::string>> find_all(const std::string& text, const std::string& form) {
  const std::regex regex(form);
  std::vector<std::vector<std::string>> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.emplace_back(it->begin(), it->end());
  return found;
}

// A page in parts: `code` is each span of code and each line of a block of code. A span may go on
// in the next line.
struct ContributorPage {
  std::string text;
  std::vector<std::string> code;
};

ContributorPage parse_page(const std::string& text) {
  ContributorPage page{.text = text, .code = {}};
  std::string prose;
  bool in_block = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```"))
      in_block = !in_block;
    else if (in_block)
      page.code.push_back(line);
    else
      prose += line + "\n";
  }
  for (const auto& span : find_all(prose, "`([^`]+)`")) {
    std::string code = std::regex_replace(span[1], std::regex("\n *"), " ");
    page.code.push_back(std::regex_replace(code, std::regex(R"(\\\|)"), "|"));
  }
  return page;
}

// Paths from the root. NAME stands for any name.
std::vector<std::string> paths_of(const ContributorPage& page) {
  std::vector<std::string> paths;
  for (const std::string& code : page.code) {
    for (const auto& word :
         find_all(code, R"((^|[ '"])((?:[\w.-]+/)+[\w.-]+|[\w-]+\.md|CMakeLists\.txt)\b)")) {
      const std::string& path = word[2];
      if (!path.starts_with("build/") && !path.starts_with("./")) paths.push_back(path);
    }
  }
  return paths;
}

bool exists_as(const std::string& path) {
  if (path.find("NAME") == std::string::npos) return fs::exists(kRepository / path);
  const fs::path folder = kRepository / fs::path(path).parent_path();
  const std::string ending = fs::path(path).extension();
  if (!fs::is_directory(folder)) return false;
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator{},
                     [&](const auto& entry) { return entry.path().extension() == ending; });
}

// The anchor that GitHub gives to a heading.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

bool has_anchor(const std::string& page, const std::string& anchor) {
  for (const auto& heading : find_all(page, "(?:^|\n)#+ ([^\n]*)"))
    if (anchor_of(heading[1]) == anchor) return true;
  return false;
}

// The sources of each test program, from the tailrace_test() calls of a CMakeLists.txt. Lists of
// sources and loops over names are followed as far as they are words.
void add_programs(const std::string& text,
                  std::map<std::string, std::vector<std::string>>& programs) {
  std::map<std::string, std::string> lists;
  for (const auto& list : find_all(text, R"((?:set|foreach)\((\w+) ([^()]*)\))"))
    lists[list[1]] = list[2];
  for (const auto& call : find_all(text, R"(tailrace_test\(([\w${}]+)([^)]*)\))")) {
    std::string files = call[2];
    for (const auto& name : find_all(call[2], R"(\$\{(\w+)\})")) files += " " + lists[name[1]];
    std::vector<std::string> names{call[1]};
    if (const auto loop = find_all(call[1], R"(^(\w+)\$\{(\w+)\}$)"); !loop.empty()) {
      names.clear();
      for (const auto& word : find_all(lists[loop[0][2]], R"(\w+)"))
        names.push_back(loop[0][1] + word[0]);
    }
    for (const std::string& name : names)
      for (const auto& file : find_all(files, R"([\w/]+\.c[cu]\b)"))
        programs[name].push_back("tests/" + file[0]);
  }
}

std::map<std::string, std::vector<std::string>> find_programs() {
  std::map<std::string, std::vector<std::string>> programs;
  for (const auto& top : fs::directory_iterator(kRepository)) {
    const std::string name = top.path().filename();
    if (!top.is_directory() || name.starts_with('.') || name == "build") continue;
    for (const auto& entry : fs::recursive_directory_iterator(top))
      if (entry.path().filename() == "CMakeLists.txt")
        add_programs(read_text(entry.path()), programs);
  }
  return programs;
}

// "Suite.Name" of a source; a test with parameters is there once, with every name of a parameter
// that the source has in quotes behind it.
std::vector<std::string> tests_of(const std::string& source) {
  const std::string text = read_text(kRepository / source);
  std::string parameters;
  for (const auto& quoted : find_all(text, R"re("([\w/-]+)")re")) parameters += "/" + quoted[1];
  std::vector<std::string> tests;
  for (const auto& test : find_all(text, R"(TEST(_[FP])?\((\w+),\s*(\w+)\))"))
    tests.push_back(test[2] + "." + test[3] + (test[1] == "_P" ? parameters : ""));
  return tests;
}

// Each alternative of `selection`, as of ctest -R, that no test of these sources has.
std::vector<std::string> find_idle(const std::string& selection,
                                   const std::vector<std::string>& sources) {
  std::vector<std::string> tests;
  // Scripts are tests by themselves.
  for (const auto& test :
       find_all(read_text(kRepository / "tests/CMakeLists.txt"), R"(add_test\(NAME (\w+))"))
    tests.push_back(test[1]);
  for (const std::string& source : sources)
    for (std::string& test : tests_of(source)) tests.push_back(std::move(test));
  std::vector<std::string> idle;
  std::istringstream alternatives(selection);
  for (std::string one; std::getline(alternatives, one, '|');) {
    const std::regex regex(one);
    if (std::ranges::none_of(tests, [&](const auto& test) { return regex_search(test, regex); }))
      idle.push_back(one);
  }
  return idle;
}

// Every mistake of a page, as a sentence.
std::vector<std::string> find_mistakes(const std::string& text) {
  const ContributorPage page = parse_page(text);
  const auto programs = find_programs();
  const std::string makefile = "\n" + read_text(kRepository / "Makefile");
  const std::string commands = read_text(kRepository / "cli/main.cc");
  const std::string keys = read_text(kRepository / "docs/configuration.md");
  std::string options;
  for (const auto& entry : fs::directory_iterator(kRepository / "cli/commands"))
    if (entry.path().extension() == ".cc") options += read_text(entry.path());
  std::vector<std::string> mistakes;
  auto expect = [&](bool is_right, const std::string& mistake) {
    if (!is_right) mistakes.push_back(mistake);
  };

  std::string named_sources;  // of all files that the page names
  for (const std::string& path : paths_of(page)) {
    expect(exists_as(path), "there is no " + path);
    if (fs::is_regular_file(kRepository / path)) named_sources += read_text(kRepository / path);
  }
  for (const auto& link : find_all(page.text, R"(\]\(([^)#:]*)(#[^)]*)?\))")) {
    const fs::path target = kRepository / link[1].substr(0, link[1].find(' '));
    expect(fs::exists(target), "there is no " + link[1]);
    const std::string& anchor = link[2];
    expect(anchor.empty() ||
               has_anchor(link[1].empty() ? page.text : read_text(target), anchor.substr(1)),
           link[1] + " has no heading " + anchor);
  }
  const std::regex item(R"(^datasets\.NAME\.)");  // has the keys of env
  std::vector<std::string> every_source;
  for (const auto& [name, sources] : programs)
    every_source.insert(every_source.end(), sources.begin(), sources.end());
  for (const std::string& code : page.code) {
    for (const auto& word : find_all(code, R"(\btest_\w+\b)"))
      expect(programs.contains(word[0]), "no CMakeLists.txt declares " + word[0]);
    for (const auto& call : find_all(code, R"((?:^|&& )ninja -C build ([\w ]+))"))
      for (const auto& target : find_all(call[1], R"(\w+)"))
        expect(target[0] == "tailrace" || target[0] == "PROGRAM" || programs.contains(target[0]),
               "there is no target " + target[0]);
    for (const auto& call : find_all(code, R"((?:^|&& )make ([\w-]+))"))
      expect(makefile.find("\n" + call[1] + ":") != std::string::npos,
             "the Makefile has no target " + call[1]);
    for (const auto& call : find_all(code, R"((?:^|&& )(?:build/)?tailrace ([a-z]+)\b)"))
      expect(commands.find("add_" + call[1] + "(") != std::string::npos,
             "there is no command " + call[1]);
    for (const auto& call : find_all(code, R"(^(?:[a-z]+ )?(--[a-z-]+)$)"))
      expect(options.find('"' + call[1] + '"') != std::string::npos,
             "no command has an option " + call[1]);
    for (const auto& call : find_all(code, R"re(^ctest .*-R ["']?([^ "']+))re"))
      if (call[1] != "NAME" && call[1] != "TESTS")
        for (const std::string& idle : find_idle(call[1], every_source))
          mistakes.push_back("no test is called " + idle);
    // A key, with the name of an item of a list in it.
    if (std::regex_match(code, std::regex(R"([a-z_]+(\.NAME)?(\.[a-z_]+)+)")) &&
        !code.ends_with(".json") && !code.ends_with(".yaml") && !paths_of({"", {code}}).size())
      expect(std::regex_search(
                 keys, std::regex("[` ]" + std::regex_replace(code, item, "env.") + "[`\n]")),
             "docs/configuration.md has no key " + code);
    // Names of the code that cannot be words of a sentence.
    if (std::regex_match(code, std::regex(R"(k[A-Z]\w+|\w+\(\))")) && code != "kCamelCase")
      expect(named_sources.find(code.substr(0, code.find('('))) != std::string::npos,
             "no file that the page names has " + code);
  }
  // "`lite_ppo` in `trainer/loss/presets.cc`", "`kFormat` (`core/weights/manifest.cc`)".
  for (const auto& place : find_all(page.text, R"(`(\w+)`\s(?:in\s|\()`([\w./]+\.[a-z]+)`)"))
    expect(read_text(kRepository / place[2]).find(place[1]) != std::string::npos,
           place[2] + " has no " + place[1]);
  // Rows that end with a program and its tests.
  for (const auto& row : find_all(page.text, R"(\| `(test_\w+)` \| `([^`]+)` \|\n)")) {
    if (!programs.contains(row[1])) continue;
    const std::string tests = std::regex_replace(row[2], std::regex(R"(\\\|)"), "|");
    for (const std::string& idle : find_idle(tests, programs.at(row[1])))
      mistakes.push_back(row[1] + " has no test " + idle);
  }
  return mistakes;
}

TEST(ContributorPages, NameWhatIsThere) {
  for (const char* name : {"CONTRIBUTING.md", "SECURITY.md"}) {
    const std::string text = read_text(kRepository / name);
    ASSERT_FALSE(text.empty());
    for (const std::string& mistake : find_mistakes(text)) ADD_FAILURE() << name << ": " << mistake;
  }
  const std::string page = read_text(kRepository / "CONTRIBUTING.md");
  EXPECT_GT(paths_of(parse_page(page)).size(), 80u);
}

TEST(ContributorPages, EachKindOfMistakeIsSeen) {
  const std::string wrong =
      "`core/model/no.cc`, `core/NAME.py`, [a](docs/no.md), [b](docs/design.md#no), [c](#no)\n"
      "`test_no`, `ninja -C build no`, `make no`, `tailrace no`, `worker --no`, `ctest -R "
      "'Readmes|NoSuite'`\n"
      "`run.no`, `kNo`, `no_such()`, `kNo` in `core/base/file.h`\n\n"
      "| a | `b` | `test_structure` | `Readmes\\|^Docs` |\n";
  EXPECT_EQ(find_mistakes(wrong),
            (std::vector<std::string>{
                "there is no core/model/no.cc", "there is no core/NAME.py",
                "there is no docs/no.md", "docs/design.md has no heading #no",
                " has no heading #no", "no CMakeLists.txt declares test_no",
                "there is no target no", "the Makefile has no target no", "there is no command no",
                "no command has an option --no", "no test is called NoSuite",
                "docs/configuration.md has no key run.no", "no file that the page names has kNo",
                "no file that the page names has no_such()", "no file that the page names has kNo",
                "core/base/file.h has no kNo", "test_structure has no test ^Docs"}));
  EXPECT_EQ(find_mistakes("`core/base/file.h`, `make test`, `test_structure`, `run.seed`, [a](#b)\n"
                          "# B\n`read_file()`, `build/tailrace docs docs/configuration.md`\n"),
            std::vector<std::string>{});
}

}  // namespace
}  // namespace tailrace
