// Names that other programs give to our options: a table of data, and a pass over a config that
// puts what it finds under such a name where our key is. The table comes from the caller; nothing
// here knows a program.
//
//   learning_rate: 1e-6                        optim: {lr: 1e-6}
//   actor_rollout_ref: {rollout: {n: 8}}  -->  rollout: {group_size: 8}
//
// A name is taken only where its value means the same here. For every other name the table holds a
// text that says what to write, which is an error for the person who gave the name.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config_document.h"

namespace tailrace {

// The value of ours that one value of theirs becomes.
struct ForeignValue {
  std::string_view theirs;      // in lower case; "*": every value that has no row
  std::string_view ours = "*";  // "*": the same value; empty: our key stays as it is
  // Not empty: the value is refused, and this says what to write.
  std::string_view told = {};
  // "key=value" of ours, with a blank between several, that their value says besides; "*" is the
  // same value. It counts where nobody gives that key in this layer or a higher one, and no name of
  // theirs gives it in any layer. With `ours` empty it gives way to what other values say besides.
  std::string_view also = {};
  // Not empty: a key of ours that somebody has to give besides, as frameworks differ in its
  // default. Where nobody does, `told` is the answer, and there alone.
  std::string_view wants = {};
};

struct ForeignName {
  std::string_view programs;  // whose name it is; ", " between several
  // Full, with dots: "actor_rollout_ref.rollout.n". One without dots is taken at the top and in the
  // section of our key: `learning_rate`, `optim.learning_rate`.
  std::string_view name;
  // Ours, or an entry of a map of ours; empty: the name is always refused.
  std::string_view key = {};
  // The advice on what to write instead of a name that is refused, also by `only_with` or `needs`.
  std::string_view told = {};
  std::vector<ForeignValue> values = {};  // empty: each value is the same here
  // "key=value" of ours, with a blank between several: the name means the same only while each key
  // has that value, or none.
  std::string_view only_with = {};
  // A switch of theirs, by the last part of its name, with the value that turns this name on
  // ("use_kl_loss=true"), or with any value ("kl_loss_coef"). Without it, in whatever layer, `told`
  // is the answer.
  std::string_view needs = {};
  // The name is one of our sections too: it is taken where a plain value stands.
  bool is_section = false;
  // Not empty: a list of one is its element, and this is what to do with several.
  std::string_view several = {};
  // Values, with a blank between several, that switch nothing on: where the name would be refused,
  // they say nothing. Nothing at all ("", [], {}) is one of them. Of a name that is taken without
  // `needs` they are taken as well, and say nothing where nothing reads our key.
  std::string_view neutral = {};
  // Not empty: what the log adds where the name is taken.
  std::string_view note = {};
  // "key=value" of ours, with a blank between several, that a refusal proposes to paste: "*" is the
  // same value, and a value with an operator is worked out: "rollout.prompts_per_step/value".
  std::string_view write = {};
};

struct ForeignReading {
  struct Error {
    ConfigPlace place;
    std::string message;  // without the place
    std::string name;     // as it is written
  };
  ConfigNode root;                 // without the names of the table
  std::vector<std::string> notes;  // names that left our keys as they were, and notes of rows
  std::vector<Error> errors;
  bool found = false;  // there was a name of the table
};

ForeignReading read_foreign_names(ConfigNode root, std::span<const ForeignName> names);

}  // namespace tailrace
