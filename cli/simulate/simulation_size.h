// Size of a simulation before it is played: events, memory and time, estimated from the sizes of
// the config alone. Values that are accepted one by one can make a simulation that no machine holds
// or nobody waits for; its person hears so before it begins.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "cli/simulate/simulation.h"
#include "core/base/machine.h"

namespace tailrace {

// Upper ends of rough estimates: within a factor of about three where lengths are drawn.
struct SimulationSize {
  double steps = 0;
  double bytes = 0;    // at its largest
  double events = 0;   // that the scheduler decides on, and turns that are played
  double seconds = 0;  // of one core, until all steps are done
  std::string cure;    // names the keys that make the most of it
};
SimulationSize size_of(const Simulation& simulation);

// Throws UserError where it takes more memory than is free here. A machine that does not say
// passes.
void require_size(const SimulationSize& size, const MemoryFacts& machine);

// The warning for a person before a wait; empty of what a laptop plays in a minute.
std::string size_note(const SimulationSize& size);

}  // namespace tailrace
