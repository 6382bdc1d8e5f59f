#include "cli/view/note.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(NoteLines, BreakBeforeTheWordThatGoesBeyondTheColumns) {
  EXPECT_EQ(note_lines("all is well"), "note: all is well\n");
  const std::string half(46, 'a'), rest(45, 'b'), wide(120, 'c');
  EXPECT_EQ(note_lines(half + " " + rest + " d"), "note: " + half + " " + rest + " d\n") << "100";
  EXPECT_EQ(note_lines(half + " " + rest + " de f"),
            "note: " + half + " " + rest + "\n      de f\n");
  EXPECT_EQ(note_lines(wide + " d"), "note: " + wide + "\n      d\n");
}

}  // namespace
}  // namespace tailrace
