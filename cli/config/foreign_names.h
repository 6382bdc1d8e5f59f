// The option names of other frameworks that a config of ours accepts or answers: data for
// core/config/foreign_names.h. configs/names has a file for each framework, which the build embeds;
// docs/coming-from.md shows all of them.
//
// A name is taken only where its value means the same here, samples against prompts and the place
// of a penalty included. Names that several frameworks share with one meaning have one row.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/embedded_file.h"
#include "core/config/foreign_names.h"

namespace tailrace {

// All rows; no two have one name. The first call parses them, which takes some milliseconds.
std::span<const ForeignName> foreign_names();

// The names of a run that learns from sft.data alone: learning_rate is sft.optim.lr there.
std::span<const ForeignName> supervised_names();

// Whether all keys of a config are ours, so that it is read the same without a table.
bool has_only_our_keys(const ConfigNode& root);

// Whether a config is of such a run, as far as it says itself.
bool is_supervised(const ConfigNode& root);

// The files of configs/names, in the order of the page.
std::span<const EmbeddedFile> name_files();

// docs/coming-from.md, which `tailrace docs --names` writes.
std::string coming_from_page();

}  // namespace tailrace
