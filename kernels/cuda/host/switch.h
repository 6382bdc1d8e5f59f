// A change of stacks: what fibers are made of.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(TR_EMULATION_UCONTEXT)
#include <ucontext.h>
#endif

namespace tailrace::cuda::emulation {

#if defined(__x86_64__) && !defined(TR_EMULATION_UCONTEXT)

struct Place {
  void* stack_pointer = nullptr;
};

// The first change to `place` calls `entry`, which never returns.
inline void begin_at(Place& place, std::byte* stack, size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<uintptr_t*>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
  top[-1] = 0;  // where a caller's address would be
  top[-2] = reinterpret_cast<uintptr_t>(entry);
  place.stack_pointer = top - 2;
}

// Goes on at `to`; comes back when somebody goes on at `from`. In line, and by jmp: a call and a
// ret would not match, and each later return of the fiber would be predicted wrongly. Vector
// registers are not kept: no caller has values in them.
[[gnu::always_inline]] inline void change(Place& from, const Place& to) {
  Place* save = &from;
  void* next = to.stack_pointer;
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"  // the red zone
      "pushq %%rbp\n\t"
      "pushq %%rbx\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%%rdi)\n\t"
      "movq %%rsi, %%rsp\n\t"
      "popq %%rax\n\t"
      "jmp *%%rax\n"
      "1:\n\t"
      "popq %%rbx\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(save), "+S"(next)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
}

#else  // ten times slower

struct Place {
  ucontext_t context;
};
inline void begin_at(Place& place, std::byte* stack, size_t bytes, void (*entry)()) {
  getcontext(&place.context);
  place.context.uc_stack.ss_sp = stack;
  place.context.uc_stack.ss_size = bytes;
  place.context.uc_link = nullptr;
  makecontext(&place.context, entry, 0);
}
inline void change(Place& from, const Place& to) { swapcontext(&from.context, &to.context); }

#endif

}  // namespace tailrace::cuda::emulation
