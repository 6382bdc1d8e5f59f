// Hands the CUDA backend to the process: its memory, its streams, its ops.
#pragma once

namespace tailrace {

// Once, before anything else is made; main() does. A build without CUDA provides nothing. Costs
// nothing and asks no driver: backend_facts() does that when somebody wants to know.
void provide_cuda();

}  // namespace tailrace
