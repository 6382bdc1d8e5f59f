#include "core/chat/jinja_arguments.h"

#include <algorithm>

namespace tailrace::chat::jinja {

BoundArguments::BoundArguments(std::string_view callee, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters,
                               size_t num_required)
    : callee_(callee), num_required_(num_required), values_(parameters.size()) {
  if (arguments.positional.size() > parameters.size())
    throw Error("{}() takes at most {} arguments, and {} are given", callee, parameters.size(),
                arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) throw Error("{}() has no argument '{}'", callee, name);
    const Value*& place = values_[it - parameters.begin()];
    if (place) throw Error("{}() got two values for '{}'", callee, name);
    place = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!values_[i]) throw Error("{}() needs the argument '{}'", callee, parameters.begin()[i]);
  }
}

Value BoundArguments::value(size_t parameter, Value fallback) const {
  return find(parameter) ? *find(parameter) : fallback;
}

int64_t BoundArguments::integer(size_t parameter, int64_t fallback) const {
  return given(parameter) ? to_integer(*find(parameter)) : fallback;
}

std::string BoundArguments::text(size_t parameter, std::string_view fallback) const {
  // None stands for the default where Python's signature has None; a required argument that is none
  // is of a wrong type.
  if (!given(parameter) && parameter >= num_required_) return std::string(fallback);
  const std::string* text = find(parameter)->text();
  if (!text) throw Error("{}() wants a string, not '{}'", callee_, type_name(*find(parameter)));
  return *text;
}

bool BoundArguments::flag(size_t parameter, bool fallback) const {
  return find(parameter) ? truth(*find(parameter)) : fallback;
}

}  // namespace tailrace::chat::jinja
