// An experiment that a paper published, simulated: production scheduling decisions in a made-up
// cluster, and what the paper measured beside what came out. Each .cc file of this folder is one
// paper; its head says the workload, the cells that were used for fitting and what they gave, what
// is our own choice because nobody published it, and how each row is simulated.
//
// A cell is fitted, gated or shown. A cost model is fitted on baseline cells when the bench runs,
// never on the ratio that a paper claims. A gated cell counts: it is either within its bound, or a
// miss that bench/results/simulate-2026-11.md explains. Rows of order alone are counted apart: they
// say which of two is faster and no more. A row is undetermined where what was published leaves its
// number open: it is shown under each of several choices, and missing() says why.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/simulator/world.h"

namespace tailrace::simulate {

enum class Use : uint8_t { kGated, kFitted, kShown, kUndetermined };

enum class Bound : uint8_t {
  kExact,          // the same number, or for a bound that holds everywhere: 0 violations
  kTenPercent,     // "A" of the list of rows
  kTwentyPercent,  // "B"
  kOrder,          // "C": on the same side of 1
};

// Written with the names of its fields, so that nobody swaps two numbers.
struct Cell {
  std::string row = {};   // of the list of published rows
  std::string what = {};  // "14B/16k, prompts x 1.25"
  std::string unit = {};  // "s", "x"
  double published = 0, simulated = 0;
  Bound bound = Bound::kTwentyPercent;
  Use use = Use::kGated;
  bool within() const;
};

struct Experiment {
  std::string name, paper;
  std::vector<Cell> (*run)() = nullptr;
};

// All of them, in the order in which they run.
const std::vector<Experiment>& experiments();

// A published row that does not count: the scheduler has no such mechanism, or what was published
// does not determine it.
struct Missing {
  std::string rows, what, mechanism;
};
const std::vector<Missing>& missing();

// One file each.
std::vector<Cell> run_theory();
std::vector<Cell> run_rollpacker();
std::vector<Cell> run_roll_flash();
std::vector<Cell> run_rollart();
std::vector<Cell> run_april();
std::vector<Cell> run_areal();
std::vector<Cell> run_verl();
std::vector<Cell> run_laminar();
std::vector<Cell> run_asyncflow();

}  // namespace tailrace::simulate
