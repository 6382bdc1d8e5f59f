// Keys of CURVE and the folder that holds them: who a run's server is, and who may join.
//
//   DIR/server.key           the run's secret key; readable by its owner alone
//   DIR/server.pub           what workers know the server by
//   DIR/NAME.key             the secret key of NAME, to be taken to NAME's machine
//   DIR/allowed/NAME.pub     NAME may join; without this file it may not
//
// A key file is text: a comment, then "public Z85" and, of a secret key, "secret Z85".
//
// Thread: any.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/wire/endpoint.h"

namespace tailrace::wire {

struct KeyFolder {
  std::filesystem::path root;

  std::filesystem::path server() const { return root / "server.key"; }
  std::filesystem::path server_public() const { return root / "server.pub"; }
  std::filesystem::path secret(std::string_view name) const;
  std::filesystem::path allowed() const { return root / "allowed"; }
  std::filesystem::path allowed(std::string_view name) const;
};

KeyPair new_key_pair();
// 40 characters of Z85.
bool is_curve_key(std::string_view text);

// Writes a new pair as `secret` (0600) and `shared`, neither of which may be there. Throws
// UserError.
void write_key_pair(const std::filesystem::path& secret, const std::filesystem::path& shared,
                    const std::string& comment);

// Throws UserError: missing, not such a file, or a secret that others can read.
KeyPair read_secret_key(const std::filesystem::path& file);
std::string read_public_key(const std::filesystem::path& file);

// Whose key it is that wants to connect; nothing: nobody's that may. The folder is read anew each
// time, so that a file that is added or removed counts at the next connection.
std::optional<std::string> find_allowed(const KeyFolder& keys, std::string_view public_key);

}  // namespace tailrace::wire
