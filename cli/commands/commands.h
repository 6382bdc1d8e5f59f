// The commands of the binary: each function adds one, with its options and an example, and lives in
// the file of its name. Its action gives back the exit status; UserError ends it with exit code 2.
// A command of a command ("model score") is added by that one.
#pragma once

namespace tailrace {

class Command;
struct Registries;

// The heading of commands that nobody needs who only trains.
inline constexpr const char* kForDevelopers = "For developers";

void add_bench(Command& program);
void add_docs(Command& program);
void add_doctor(Command& program);
void add_env(Command& program, const Registries& registries);
void add_eval(Command& program, const Registries& registries);
void add_import(Command& program);
void add_launch(Command& program, const Registries& registries);
void add_model(Command& program);
void add_model_check(Command& model);
void add_model_generate(Command& model);
void add_model_merge(Command& model);
void add_model_score(Command& model);
void add_model_tokenize(Command& model);
// Names that commands had: who types one is told the new command line.
void add_old_names(Command& program);
void add_plan(Command& program, const Registries& registries);
void add_report(Command& program);
void add_reward(Command& program, const Registries& registries);
void add_serve(Command& program);
void add_status(Command& program);
void add_weights(Command& program);
void add_worker(Command& program, const Registries& registries);
void add_worker_keys(Command& worker);

}  // namespace tailrace
