// Where the processes of one launch meet: a socket in a private folder with a short path (a
// socket's path may have 107 characters, and a run directory may lie deep). RUN/endpoint names it,
// from before it is made until it is gone: whenever a launch is killed, the next one finds it. Its
// second line names the build that runs there. The socket's file and folder may be taken away by a
// cleaner; the scheduler puts them back.
//
// Thread: the owner's only.
#pragma once

#include <filesystem>
#include <string>

namespace tailrace {

class RunEndpoint {
 public:
  // Records the endpoint and makes its folder, that only this user can enter, below XDG_RUNTIME_DIR
  // or the temporary folder; that of an earlier launch that was killed is removed. Throws UserError
  // when it cannot.
  explicit RunEndpoint(const std::filesystem::path& run_directory);
  ~RunEndpoint();
  RunEndpoint(const RunEndpoint&) = delete;

  void remove();  // as the destructor does, for a process that ends without it

  const std::string& name() const { return name_; }  // "ipc:///run/user/1000/tr-a1b2c3/s"

  // Some worker of this launch has installed weights: mark_begun() was called.
  bool begun() const;

 private:
  std::filesystem::path run_, folder_;
  std::string name_;
};

// Says so for the launch whose endpoint this is (RUN/begun names it); where it cannot be said, the
// launch only takes longer to believe that a worker's mistake is not the person's.
void mark_begun(const std::filesystem::path& run_directory, const std::string& endpoint);

// Whether a scheduler of the run answers now. One that is being started, or started again, does
// not.
bool is_running(const std::filesystem::path& run_directory);

// The address in RUN/endpoint. Throws UserError when the run is not being run.
std::string read_endpoint(const std::filesystem::path& run_directory);

// The same, for one that a person adds to a living run. Throws UserError for a person: nobody runs
// it, its scheduler does not answer, another build runs it, or it is still starting.
std::string endpoint_to_join(const std::filesystem::path& run_directory);

// The launch of this endpoint goes on, as far as RUN/endpoint says: else it has ended, or another
// one has begun.
bool is_endpoint_of(const std::filesystem::path& run_directory, const std::string& endpoint);

}  // namespace tailrace
