# Cross-compiles for aarch64 on a Debian of another architecture (docs/systems.md says with which
# packages). flatc runs while Tailrace is built, so it is the build machine's own.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# Debian's folders for several architectures stand beside each other: programs are found in the
# usual places, libraries and packages in those of the target.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)

# Test programs are asked for their tests as they are built, and ctest runs them, by this.
find_program(TAILRACE_EMULATOR NAMES qemu-aarch64-static qemu-aarch64)
if(TAILRACE_EMULATOR)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${TAILRACE_EMULATOR})
endif()
