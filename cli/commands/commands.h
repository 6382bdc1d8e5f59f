// The commands of the binary: each function adds one, with its options and an example, and lives in
// the file of its name. A command runs in its CLI11 callback; UserError ends it with exit code 2,
// CLI::RuntimeError with a code of its own.
#pragma once

namespace CLI {
class App;
}

namespace tailrace {

struct Registries;

void add_bench(CLI::App& app);
void add_docs(CLI::App& app);
void add_doctor(CLI::App& app);
void add_eval(CLI::App& app, const Registries& registries);
void add_generate(CLI::App& app);
void add_launch(CLI::App& app, const Registries& registries);
void add_report(CLI::App& app);
void add_score(CLI::App& app);
void add_status(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_trace(CLI::App& app);
void add_worker(CLI::App& app, const Registries& registries);

}  // namespace tailrace
