#include "core/wire/curve_keys.h"

#include <cerrno>
#include <map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/messages/check.h"
#include "kernels/base/check.h"

namespace tailrace::wire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeyCharacters = 40;
constexpr int64_t kMaxKeyFileBytes = 4096;

// The values of a key file by their names.
Result<std::map<std::string, std::string>> read_key_file(const fs::path& file) {
  const auto text = read_file(file, kMaxKeyFileBytes);
  if (!text) return text.failure();
  std::map<std::string, std::string> values;
  LineReader lines(text.value());
  while (const auto line = lines.next()) {
    if (line->text.empty() || line->text.starts_with("#")) continue;
    const size_t space = line->text.find(' ');
    const std::string name(line->text.substr(0, space));
    const std::string_view value =
        space == std::string_view::npos ? std::string_view() : line->text.substr(space + 1);
    if ((name != "public" && name != "secret") || !is_curve_key(value))
      return Failure{fmt::format("{}:{}: not a line of a key file ('public KEY', 'secret KEY')",
                                 file.string(), line->number)};
    values[name] = value;
  }
  if (!values.contains("public"))
    return Failure{fmt::format("{}: it has no public key, so it is no key file", file.string())};
  return values;
}

void write_new(const fs::path& file, mode_t mode, const std::string& text) {
  const FileDescriptor descriptor(
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!descriptor.is_open()) throw UserError("{}", describe_errno("create", file, errno));
  if (::write(descriptor.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(descriptor.get()) != 0) {
    const int error = errno;
    ::unlink(file.c_str());
    throw UserError("{}", describe_errno("write", file, error));
  }
}

}  // namespace

bool is_curve_key(std::string_view text) {
  uint8_t bytes[32];
  // ZeroMQ reads C strings, and would take one that ends early for a key.
  return text.size() == kKeyCharacters && text.find('\0') == std::string_view::npos &&
         zmq_z85_decode(bytes, std::string(text).c_str()) != nullptr;
}

fs::path KeyFolder::secret(std::string_view name) const {
  return root / fmt::format("{}.key", name);
}

fs::path KeyFolder::allowed(std::string_view name) const {
  return allowed() / fmt::format("{}.pub", name);
}

KeyPair new_key_pair() {
  char shared[kKeyCharacters + 1], secret[kKeyCharacters + 1];
  TR_CHECK(zmq_curve_keypair(shared, secret) == 0, "{}", zmq_strerror(zmq_errno()));
  return {shared, secret};
}

void write_key_pair(const fs::path& secret, const fs::path& shared, const std::string& comment) {
  const KeyPair pair = new_key_pair();
  write_new(secret, 0600,
            fmt::format("# {}: secret, for its owner alone\npublic {}\nsecret {}\n", comment,
                        pair.public_key, pair.secret_key));
  try {
    write_new(shared, 0644, fmt::format("# {}: public\npublic {}\n", comment, pair.public_key));
  } catch (const UserError&) {
    // Half a pair is of no use, and would stand in the way of the next attempt.
    ::unlink(secret.c_str());
    throw;
  }
}

KeyPair read_secret_key(const fs::path& file) {
  auto values = read_key_file(file);
  if (!values) throw UserError("{}", values.failure().message);
  if (!values.value().contains("secret"))
    throw UserError(
        "{}: it holds a public key alone, and the secret one is wanted.\n       Try the file "
        "NAME.key "
        "that 'tailrace worker keys new NAME' has written.",
        file.string());
  struct stat facts {};
  if (::stat(file.c_str(), &facts) == 0 && (facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UserError(
        "{}: others than its owner can read this secret key (mode {:o}).\n       Try 'chmod 600 "
        "{}'; "
        "if they may have read it, make new keys.",
        file.string(), facts.st_mode & 0777, file.string());
  KeyPair pair{values.value().at("public"), values.value().at("secret")};
  // The handshake of such a pair fails, and does not say why.
  char derived[kKeyCharacters + 1];
  if (zmq_curve_public(derived, pair.secret_key.c_str()) != 0 || pair.public_key != derived)
    throw UserError("{}: its two keys do not belong together.\n       Try to copy the file again.",
                    file.string());
  return pair;
}

std::string read_public_key(const fs::path& file) {
  auto values = read_key_file(file);
  if (!values) throw UserError("{}", values.failure().message);
  return values.value().at("public");
}

std::optional<std::string> find_allowed(const KeyFolder& keys, std::string_view public_key) {
  // A folder that cannot be read to its end lets in whom it has named until then; a loop over its
  // range would throw, on the thread of the Doorkeeper.
  std::error_code error;
  for (fs::directory_iterator entry(keys.allowed(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().stem().string();
    // The name goes into logs and the names of files.
    if (entry->path().extension() != ".pub" || !is_site_name(name)) continue;
    const auto values = read_key_file(entry->path());
    if (values && values.value().at("public") == public_key) return name;
  }
  return std::nullopt;
}

}  // namespace tailrace::wire
