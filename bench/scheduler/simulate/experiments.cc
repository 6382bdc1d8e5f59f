#include "bench/scheduler/simulate/experiment.h"

namespace tailrace::simulate {

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> kAll = {
      {"theory", "ROLL Flash, proposition 2", run_theory},
      {"rollpacker", "RollPacker, arXiv 2509.21009", run_rollpacker},
      {"roll_flash", "ROLL Flash, arXiv 2510.11345", run_roll_flash},
      {"rollart", "RollArt, arXiv 2512.22560", run_rollart},
      {"april", "APRIL, arXiv 2509.18521", run_april},
      {"areal", "AReaL, arXiv 2505.24298", run_areal},
      {"verl", "verl, documentation of its fully asynchronous trainer", run_verl},
      {"laminar", "Laminar, arXiv 2510.12633", run_laminar},
      {"asyncflow", "AsyncFlow, arXiv 2507.01663", run_asyncflow},
  };
  return kAll;
}

}  // namespace tailrace::simulate
