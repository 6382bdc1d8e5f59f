// The arguments of a filter, test, method or function by the names of its parameters.
//
// Thread: any; borrows the arguments.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

class BoundArguments {
 public:
  // Throws Error for too many arguments, unknown names, and less than `num_required`.
  BoundArguments(std::string_view callee, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters, size_t num_required = 0);

  // By place. Null: not given.
  const Value* find(size_t parameter) const { return values_[parameter]; }
  bool given(size_t parameter) const { return find(parameter) && !find(parameter)->is_none(); }
  Value value(size_t parameter, Value fallback = {}) const;
  // Throw Error for a value of another type. None counts as not given where nothing is required.
  int64_t integer(size_t parameter, int64_t fallback) const;
  std::string text(size_t parameter, std::string_view fallback) const;
  bool flag(size_t parameter, bool fallback) const;  // any value: its truth

 private:
  std::string callee_;
  size_t num_required_;
  std::vector<const Value*> values_;
};

}  // namespace tailrace::chat::jinja
