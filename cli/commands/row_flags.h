// The flags of commands that read a file of rows: what of it is read.
#pragma once

#include <string>
#include <vector>

#include "cli/config/options.h"
#include "core/config/flags.h"
#include "core/text/row_file.h"

namespace tailrace {

inline void add_row_flags(Command& command, FilesSection& files,
                          const std::vector<std::string>& excludes = {}) {
  command.option("--max-row-mb", files.max_row_mb,
                 {.help = "of a line of the dataset (MiB); a longer one is refused",
                  .min = 1,
                  .max = kMaxRowMb,
                  .excludes = excludes});
  command.option("--max-file-mb", files.max_file_mb,
                 {.help = "of all lines of the dataset (MiB), unpacked",
                  .min = 1,
                  .max = kMaxFileMb,
                  .excludes = excludes});
}

inline text::RowLimits limits_of_flags(const FilesSection& files) {
  return files.limits("--max-row-mb", "--max-file-mb");
}

}  // namespace tailrace
