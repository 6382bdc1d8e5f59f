#include "core/config/foreign_table.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

ForeignTable table_of(const std::string& text) { return parse_foreign_table(text, "a.yaml"); }

std::string table_refusal(const std::string& text) {
  try {
    table_of(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(ForeignTable, HasARowForEachNameTheRefusedOnesLast) {
  const ForeignTable table = table_of(
      "program: A\n"
      "refused:\n"
      "  gpu: there is none.\n"
      "  optim: {told: it is a section., section: true, programs: B}\n"
      "names:\n"
      "  lowest: limits.low\n"
      "  bound: {programs: [A, B], key: limits.low, also: {limits.high: \"*\"}}\n");
  EXPECT_EQ(table.program, "A");
  ASSERT_EQ(table.rows.size(), 4u);
  EXPECT_EQ(table.rows[0].name, "lowest");
  EXPECT_EQ(table.rows[0].key, "limits.low");
  EXPECT_EQ(table.rows[0].programs, "A");
  EXPECT_EQ(table.rows[1].programs, "A, B");
  ASSERT_EQ(table.rows[1].values.size(), 1u);
  EXPECT_EQ(table.rows[1].values[0].theirs, "*");
  EXPECT_EQ(table.rows[1].values[0].ours, "*");
  EXPECT_EQ(table.rows[1].values[0].also, "limits.high=*");
  EXPECT_EQ(table.rows[2].key, "");
  EXPECT_EQ(table.rows[2].told, "there is none.");
  EXPECT_EQ(table.rows[3].programs, "B");
  EXPECT_TRUE(table.rows[3].is_section);
}

TEST(ForeignTable, HasValuesConditionsAndSharedTexts) {
  const ForeignTable table = table_of(
      "program: A\n"
      "shared:\n"
      "  join: &join Join them.\n"
      "  shapes: &shapes {circle: round, any: ~, cone: {told: *join}}\n"
      "names:\n"
      "  kind: {key: limits.shape, values: *shapes}\n"
      "  box: {key: k, values: {true: {ours: ~, also: {limits.low: 1, limits.high: 2}}}}\n"
      "  amount: {key: k, told: *join, only_with: {a.b: 1, a.c: x}, needs: {use_weight: true}}\n"
      "  files: {key: k, told: *join, needs: weight, several: *join}\n"
      "  rest: {key: k, neutral: [false, 0], note: it rounds up,"
      " values: {\"*\": {wants: a.b, told: *join}}}\n"
      "refused:\n"
      "  both: {told: *join, neutral: 0,"
      " write: {limits.low: \"*\", limits.high: value/limits.low}}\n");
  const auto& kind = table.rows[0].values;
  ASSERT_EQ(kind.size(), 3u);
  EXPECT_EQ(kind[0].ours, "round");
  EXPECT_EQ(kind[1].ours, "");
  EXPECT_EQ(kind[2].told, "Join them.");
  EXPECT_EQ(table.rows[1].values[0].theirs, "true");
  EXPECT_EQ(table.rows[1].values[0].ours, "");
  EXPECT_EQ(table.rows[1].values[0].also, "limits.low=1 limits.high=2");
  EXPECT_EQ(table.rows[2].only_with, "a.b=1 a.c=x");
  EXPECT_EQ(table.rows[2].needs, "use_weight=true");
  EXPECT_EQ(table.rows[3].needs, "weight");
  EXPECT_EQ(table.rows[3].several, "Join them.");
  EXPECT_EQ(table.rows[4].neutral, "false 0");
  EXPECT_EQ(table.rows[4].note, "it rounds up");
  EXPECT_EQ(table.rows[4].values[0].wants, "a.b");
  EXPECT_EQ(table.rows[5].neutral, "0");
  EXPECT_EQ(table.rows[5].write, "limits.low=* limits.high=value/limits.low");
}

// Each mistake of a person who edits a table is one sentence with its line.
TEST(ForeignTable, ThatIsMalformedIsRefusedWithTheLine) {
  const auto row = [](const std::string& fields) {
    return table_refusal("program: A\nnames:\n  n: " + fields + "\n");
  };
  EXPECT_EQ(table_refusal("program: A\nnmes: {}\n"),
            "a.yaml:2: a table of names has no field nmes; its fields are program, shared, names, "
            "refused");
  EXPECT_EQ(row("{key: k, needed: x}"),
            "a.yaml:3: n has no field needed; its fields are programs, key, told, values, also, "
            "only_with, needs, section, several, neutral, note");
  EXPECT_EQ(row("{key: k, values: {x: {our: y}}}"),
            "a.yaml:3: a value has no field our; its fields are ours, told, also, wants");
  EXPECT_EQ(row("{key: k, values: {X: y}}"),
            "a.yaml:3: the value X must be in lower case, as all are compared");
  EXPECT_EQ(row("{told: t}"), "a.yaml:3: n lacks key, the name here");
  EXPECT_EQ(row("[a]"), "a.yaml:3: found a list where a text is wanted");
  EXPECT_EQ(row("{key: k, values: {x: y}, also: {a: b}}"),
            "a.yaml:3: n has values and also; write also beside the value that says it");
  EXPECT_EQ(row("{key: k, needs: x}"),
            "a.yaml:3: n lacks told, which says what to write where it is not taken");
  EXPECT_EQ(row("{key: k, also: {a: b c}}"), "a.yaml:3: also has b c for a; it must be one word");
  EXPECT_EQ(row("{key: k, section: yes}"),
            "a.yaml:3: section is yes; it must be true, or left out");
  EXPECT_EQ(row("k\n  n: k"),
            "a.yaml:4: n is given twice (first at a.yaml:3). Remove one of them.");
  EXPECT_EQ(row("k\nrefused: {n: t}"), "a.yaml:4: n has two rows. Remove one of them.");
  // yaml-cpp 0.8 names it behind that.
  EXPECT_TRUE(
      row("*none").starts_with("a.yaml:3: not valid YAML: the referenced anchor is not defined"));
  EXPECT_EQ(row("{key: k, values: {x: {ours: y, wants: a.b}}}"),
            "a.yaml:3: a value lacks told, which says what to write where nobody gives a.b");
  EXPECT_EQ(table_refusal("names: {n: k}\n"),
            "a.yaml:1: n lacks programs; the table is of no program");
  EXPECT_EQ(table_refusal("program: A\nrefused: {n: {section: true}}\n"),
            "a.yaml:2: n lacks told, which says what to write");
}

}  // namespace
}  // namespace tailrace
