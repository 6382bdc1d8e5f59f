// Hardware that a run is planned on without being there: a file of the keys of SimulateSection, or
// one of the cards that come along (configs/hardware), which the binary holds.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/options.h"
#include "cli/config/simulate_options.h"
#include "core/base/embedded_file.h"
#include "core/config/yaml_config.h"

namespace tailrace {

struct HardwareFile {
  std::string name;  // as a person has given it
  SimulateSection section;
  ConfigKeys keys;  // where each was given, for messages
};

// The cards that come along: configs/hardware/NAME.yaml.
std::span<const EmbeddedFile> hardware_files();
std::vector<std::string> hardware_names();

// `name`: a card that comes along, or a file. `overrides`: words of a command line for which
// sets_hardware() is true. Throws UserError.
HardwareFile load_hardware(const std::string& name, std::span<const std::string> overrides);
// The same of a text, which `source` stands for in messages.
HardwareFile parse_hardware(const std::string& text, const std::string& source,
                            std::span<const std::string> overrides);

// "hardware.KEY=VALUE", which sets a key of the hardware file, and of its list `hardware`
// "hardware.NAME.KEY=VALUE".
bool sets_hardware(std::string_view override_text);

// The table of `tailrace plan --hardware list`.
std::string hardware_table();

// The file that a person is told to make for the hardware of a config: "a.hardware.yaml" beside
// "a.yaml".
std::filesystem::path hardware_beside(const std::filesystem::path& config);

// Up to some time ago a config had a section `simulate`, whose keys are now those of a hardware
// file. Throws UserError, which says so, where `root` has one.
void refuse_simulate_section(const ConfigNode& root, const std::filesystem::path& config);
// Of a run that has begun: nothing of it was ever read by a launch, so that it is left out.
void drop_simulate_section(ConfigNode& root);

}  // namespace tailrace
