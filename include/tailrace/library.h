// The common part of env.h and reward.h: settings, outcomes, random numbers, and the one function
// that a library exports. C++17, this header and abi.h alone.
//
//   TAILRACE_LIBRARY("maze", "1.0") {
//     library.environment<Maze>("maze", "find the way out")
//         .integer("size", "cells a side", 5, 3, 9);
//     library.reward<ShortWay>("short_way", "how short the way was");
//   }
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tailrace/abi.h"

namespace tailrace {

// Thrown, they say what a call came to. Any other exception is a Failed.
struct Failed : std::runtime_error {  // tried again, never a reward
  using std::runtime_error::runtime_error;
};
struct TaskBroken : std::runtime_error {  // nobody can play or score this task: not tried again
  using std::runtime_error::runtime_error;
};
struct NotDecided : std::runtime_error {  // of a score: no verdict
  using std::runtime_error::runtime_error;
};

struct Metric {
  std::string name;
  double value = 0;
};

// The values of a library's settings, each of them: what the config gives, or the fallback. Types,
// ranges and names were checked. Texts are there until the constructor that gets them returns.
class Settings {
 public:
  Settings(const tr_setting_value* values, uint64_t count) : values_(values), count_(count) {}

  std::string_view text(std::string_view name) const {
    for (uint64_t i = 0; i < count_; ++i) {
      if (name == values_[i].name) return {values_[i].value.data, values_[i].value.bytes};
    }
    throw std::logic_error("the library asks for a setting that it does not declare: " +
                           std::string(name));
  }
  int64_t integer(std::string_view name) const {
    return std::strtoll(std::string(text(name)).c_str(), nullptr, 10);
  }
  double number(std::string_view name) const {
    // Not strtod(), which would read 0.5 by the rules of a locale.
    std::string_view digits = text(name);
    if (!digits.empty() && digits.front() == '+') digits.remove_prefix(1);
    double value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }
  bool boolean(std::string_view name) const { return text(name) == "true"; }

 private:
  const tr_setting_value* values_;
  uint64_t count_;
};

// Random numbers of a seed (splitmix64; Steele, Lea and Flood 2014), the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) {  // from 0
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)
  bool chance(double probability) { return uniform() < probability; }

 private:
  uint64_t state_;
};

namespace detail {

inline tr_text view(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view view(tr_text text) { return {text.data, text.bytes}; }

// The shortest text that reads back as this number, in any locale.
inline std::string number_text(double number) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return std::string(text.data(), end);
}

// Runs a call of the library's and says what it came to; `reason` gets the words of an exception.
template <class Run>
int32_t guarded(std::string& reason, Run&& run) {
  try {
    return run();
  } catch (const TaskBroken& broken) {
    reason = broken.what();
    return TR_TASK_BROKEN;
  } catch (const NotDecided& open) {
    reason = open.what();
    return TR_NOT_DECIDED;
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "it threw something that is no std::exception";
  }
  return TR_FAILED;
}

// Metrics as the ABI has them, over names that stay where they are.
class MetricViews {
 public:
  template <class Filled>
  void fill(std::vector<Metric> metrics, Filled& filled) {
    metrics_ = std::move(metrics);
    views_.clear();
    for (const Metric& metric : metrics_) views_.push_back({metric.name.c_str(), metric.value});
    filled.metrics = views_.data();
    filled.num_metrics = views_.size();
  }

 private:
  std::vector<Metric> metrics_;
  std::vector<tr_metric> views_;
};

// A null-terminated list of texts.
class TextList {
 public:
  const char* const* set(std::vector<std::string> texts) {
    texts_ = std::move(texts);
    pointers_.clear();
    for (const std::string& text : texts_) pointers_.push_back(text.c_str());
    pointers_.push_back(nullptr);
    return pointers_.data();
  }

 private:
  std::vector<std::string> texts_;
  std::vector<const char*> pointers_;
};

// The settings of an environment or a reward, as they are declared.
template <class Type>
class Declared {
 public:
  Declared(std::string name, std::string help, Type type)
      : name_(std::move(name)), help_(std::move(help)), type_(type) {
    type_.size = sizeof type_;
    type_.name = name_.c_str();
    type_.help = help_.c_str();
    end();
  }
  Declared(const Declared&) = delete;

  Declared& integer(std::string name, std::string help, int64_t fallback,
                    int64_t min = std::numeric_limits<int64_t>::min(),
                    int64_t max = std::numeric_limits<int64_t>::max()) {
    return add(TR_INTEGER, std::move(name), std::move(help), std::to_string(fallback),
               static_cast<double>(min), static_cast<double>(max));
  }
  Declared& number(std::string name, std::string help, double fallback,
                   double min = std::numeric_limits<double>::lowest(),
                   double max = std::numeric_limits<double>::max()) {
    return add(TR_NUMBER, std::move(name), std::move(help), number_text(fallback), min, max);
  }
  Declared& boolean(std::string name, std::string help, bool fallback) {
    return add(TR_BOOL, std::move(name), std::move(help), fallback ? "true" : "false");
  }
  Declared& text(std::string name, std::string help, std::string fallback) {
    return add(TR_STRING, std::move(name), std::move(help), std::move(fallback));
  }
  // One that a config must give.
  Declared& text(std::string name, std::string help) {
    add(TR_STRING, std::move(name), std::move(help), {});
    settings_.back().shape.fallback = nullptr;
    return *this;
  }
  Declared& choice(std::string name, std::string help, std::string fallback,
                   std::vector<std::string> choices) {
    add(TR_CHOICE, std::move(name), std::move(help), std::move(fallback));
    settings_.back().shape.choices = settings_.back().choices.set(std::move(choices));
    return *this;
  }

  const Type* type() const { return &type_; }

 private:
  struct Setting {
    std::string name, help, fallback;
    TextList choices;
    tr_setting shape{};
  };

  Declared& add(int32_t type, std::string name, std::string help, std::string fallback,
                double min = 0, double max = 0) {
    Setting& setting = settings_.emplace_back();
    setting.name = std::move(name);
    setting.help = std::move(help);
    setting.fallback = std::move(fallback);
    tr_setting& shape = setting.shape;
    shape.size = sizeof shape;
    shape.type = type;
    shape.name = setting.name.c_str();
    shape.help = setting.help.c_str();
    shape.fallback = setting.fallback.c_str();
    shape.min = min;
    shape.max = max;
    list_.back() = &shape;
    end();
    return *this;
  }
  void end() {
    list_.push_back(nullptr);
    type_.settings = list_.data();
  }

  std::string name_, help_;
  Type type_;
  std::deque<Setting> settings_;  // stay where they are
  std::vector<const tr_setting*> list_;
};

template <class E>
tr_env_type env_type();  // env.h
template <class R>
tr_reward_type reward_type();  // reward.h

}  // namespace detail

// The offers of a library. Filled once, in TAILRACE_LIBRARY, and kept until the process ends.
class Library {
 public:
  explicit Library(const tr_host& host) : host_(host) {}
  Library(const Library&) = delete;

  // E is an Env that is made of Settings; a class for each name.
  template <class E>
  detail::Declared<tr_env_type>& environment(std::string name, std::string help) {
    return environments_.emplace_back(std::move(name), std::move(help), detail::env_type<E>());
  }
  // R is a Reward that is made of Settings.
  template <class R>
  detail::Declared<tr_reward_type>& reward(std::string name, std::string help) {
    return rewards_.emplace_back(std::move(name), std::move(help), detail::reward_type<R>());
  }

  void log(std::string_view line) const { host_.log(host_.self, 1, detail::view(line)); }

  const tr_library* finish(const char* name, const char* version) {
    for (const auto& declared : environments_) environment_list_.push_back(declared.type());
    for (const auto& declared : rewards_) reward_list_.push_back(declared.type());
    environment_list_.push_back(nullptr);
    reward_list_.push_back(nullptr);
    library_.size = sizeof library_;
    library_.abi = TR_ABI;
    library_.name = name;
    library_.version = version;
    library_.built_with = __VERSION__;
    library_.environments = environment_list_.data();
    library_.rewards = reward_list_.data();
    return &library_;
  }

 private:
  const tr_host& host_;
  std::deque<detail::Declared<tr_env_type>> environments_;
  std::deque<detail::Declared<tr_reward_type>> rewards_;
  std::vector<const tr_env_type*> environment_list_;
  std::vector<const tr_reward_type*> reward_list_;
  tr_library library_{};
};

}  // namespace tailrace

// NAME and VERSION are literals; the body fills `library`.
#define TAILRACE_LIBRARY(NAME, VERSION)                                            \
  static void tailrace_fill_library(tailrace::Library& library);                   \
  extern "C" TR_EXPORT const tr_library* tailrace_library_1(const tr_host* host) { \
    static tailrace::Library library(*host);                                       \
    static std::string reason;                                                     \
    const int32_t status = tailrace::detail::guarded(reason, [] {                  \
      tailrace_fill_library(library);                                              \
      return int32_t{TR_OK};                                                       \
    });                                                                            \
    if (status == TR_OK) return library.finish(NAME, VERSION);                     \
    host->log(host->self, 3, tailrace::detail::view(reason));                      \
    return nullptr;                                                                \
  }                                                                                \
  static void tailrace_fill_library(tailrace::Library& library)
