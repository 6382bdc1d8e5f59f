// The commands of the binary: each function adds one, with its options and an example, and lives in
// the file of its name. Its action gives back the exit status; UserError ends it with exit code 2.
#pragma once

namespace tailrace {

class Command;
struct Registries;

void add_bench(Command& program);
void add_docs(Command& program);
void add_doctor(Command& program);
void add_env(Command& program, const Registries& registries);
void add_eval(Command& program, const Registries& registries);
void add_generate(Command& program);
void add_import(Command& program);
void add_keys(Command& program);
void add_launch(Command& program, const Registries& registries);
void add_merge(Command& program);
void add_plan(Command& program, const Registries& registries);
void add_report(Command& program);
void add_score(Command& program);
void add_serve(Command& program);
void add_simulate(Command& program);
void add_status(Command& program);
void add_tokenize(Command& program);
void add_trace(Command& program);
void add_weights(Command& program);
void add_worker(Command& program, const Registries& registries);

}  // namespace tailrace
