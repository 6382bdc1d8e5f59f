// The presets of `algo`: for each paper a row with its values of all axes. presets.cc has the rows,
// and so the two members of AlgoOptions that read them: preset() and preset_keys().
//
// Thread: any; pure functions.
#pragma once

#include "trainer/loss/preset_names.h"

namespace tailrace {

// Whether a preset replaces groups without signal by others (scheduler.replace_zero_signal): its
// paper's dynamic sampling. Of another section, so that it stands there where nobody says it.
bool refills_groups(AlgoPreset preset);

}  // namespace tailrace
