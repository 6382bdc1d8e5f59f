// The outcome of something that may fail in the course of a healthy run: a value or a Failure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kernels/base/check.h"

namespace tailrace {

// Says what went wrong, for a person; the caller decides what it means.
struct Failure {
  std::string message;
  bool is_final = false;  // trying again would fail the same way
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}            // NOLINT
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    TR_CHECK(ok(), "{}", failure().message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    TR_CHECK(ok(), "{}", failure().message);
    return std::get<0>(state_);
  }
  T&& value() && {
    TR_CHECK(ok(), "{}", failure().message);
    return std::get<0>(std::move(state_));
  }
  const Failure& failure() const { return std::get<1>(state_); }

 private:
  std::variant<T, Failure> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : failure_(std::move(failure)) {}  // NOLINT
  bool ok() const { return !failure_; }
  explicit operator bool() const { return ok(); }
  const Failure& failure() const { return *failure_; }

 private:
  std::optional<Failure> failure_;
};

}  // namespace tailrace
