# What every target of Tailrace shares: flags, libraries, and four functions.
#
#   tailrace_library(NAME [O1] [SOURCES a.cc ...] [COLD b.cc ...] [DEPENDS tailrace::kernels ...]
#                    [LIBS fmt::fmt ...] [HEADERS all|none])
#   tailrace_test(NAME FILES core/base/a_test.cc ... [DEPENDS ...] [LABELS unit] [GOLDEN] [FILTER "*"]
#                 [LONG "filter"] [SKIPPED_BY "regex"] [RUN_SERIAL])
#   tailrace_bench(NAME MEASURES "one line" FILES kernels/kernels_bench.cc [DEPENDS ...])
#   tailrace_embed(NAME FUNCTION name_files FILES configs/names/trl.yaml ...)
#
# One library a subfolder; its DEPENDS are arrows of the map in docs/design.md. COLD: sources in
# which nothing runs often, so that -Og will do, which compiles in half of the time. O1: SOURCES are
# compiled with -O1, a quarter faster than with -O2, as they leave arithmetic to others and work on
# maps, buffers and calls of kernels. HEADERS: the precompiled ones. They hand clocks and files to the
# code under rule 1, too: the test of structure refuses their names there.
#
# The release preset joins up to 25 sources of a library or bench, or 16 of a test program, into one
# unit (CMAKE_UNITY_BUILD), which halves the time of a whole build: names in an anonymous namespace
# are unique in their folder, overloads included. The other presets compile each source alone, so
# that none leans on what its neighbour includes.

set(warnings -Wall -Wextra -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A tenth of a build is g++ collecting its garbage, if it starts at the 30 to 130 MB of its own choice;
  # this is in KiB. A source takes at most 1.2 GB with it, and 1.0 without.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1500000>)
  set(precompiled_for_ccache -fpch-preprocess)
  # g++ 12 takes a moved string for one that is read beyond its end, and at -Og warns of values that
  # are never read before they are set.
  set(wrong_at_og -Wno-maybe-uninitialized)
  set(wrong_in_tests ${wrong_at_og} -Wno-array-bounds -Wno-stringop-overflow)
else()
  set(precompiled_for_ccache "SHELL:-Xclang -fno-pch-timestamp")
  set(wrong_at_og "")
  set(wrong_in_tests "")
  # The fields of an event are written as one list, though two bases have them (scheduler/state/event.h);
  # g++ leaves this warning out of -Wall.
  list(APPEND warnings -Wno-missing-braces)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(Boost REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
# Debian's utf8proc 2.8 calls itself 2.6 there.
find_file(UTF8PROC_HEADER utf8proc.h REQUIRED HINTS ${UTF8PROC_INCLUDE_DIRS})
file(STRINGS ${UTF8PROC_HEADER} UTF8PROC_VERSION REGEX "^#define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) ")
list(TRANSFORM UTF8PROC_VERSION REPLACE ".* " "")
list(JOIN UTF8PROC_VERSION "." UTF8PROC_VERSION)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
find_package(Gloo REQUIRED)
find_program(FLATC flatc REQUIRED)
find_program(CCACHE ccache)
find_program(MOLD mold)

if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

add_library(tailrace_flags INTERFACE)
target_include_directories(tailrace_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${CMAKE_BINARY_DIR}/generated)
# -ffp-contract=off: a fused multiply-add happens where the code says so and nowhere else. Rule 3
# (one truth about numbers) needs the same bits from every place that computes a value.
target_compile_options(tailrace_flags INTERFACE ${warnings} -ffp-contract=off ${precompiled_for_ccache})
if(TAILRACE_SANITIZE)
  target_compile_options(tailrace_flags INTERFACE -fsanitize=${TAILRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(tailrace_flags INTERFACE -fsanitize=${TAILRACE_SANITIZE})
endif()
# A cross compiler finds only linkers of its own.
include(CheckLinkerFlag)
if(MOLD)
  check_linker_flag(CXX -fuse-ld=mold TAILRACE_MOLD_LINKS)
endif()
if(TAILRACE_MOLD_LINKS)
  target_link_options(tailrace_flags INTERFACE -fuse-ld=mold)
endif()
target_link_libraries(tailrace_flags INTERFACE fmt::fmt Threads::Threads)

# The standard headers that nearly every file includes, fmt and JSON, compiled once.
set(all_headers <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory> <optional> <set> <span> <string>
  <string_view> <tuple> <utility> <variant> <vector> <fmt/format.h> <atomic> <chrono> <cstring> <filesystem> <mutex>
  <thread> <unordered_map> ${CMAKE_SOURCE_DIR}/cmake/json_library.h)
set(test_headers ${all_headers} <gtest/gtest.h>)
foreach(kind all test)
  if(NOT EXISTS ${CMAKE_BINARY_DIR}/${kind}_headers.cc)
    file(WRITE ${CMAKE_BINARY_DIR}/${kind}_headers.cc "")
  endif()
  add_library(tailrace_headers_${kind} OBJECT ${CMAKE_BINARY_DIR}/${kind}_headers.cc)
  target_link_libraries(tailrace_headers_${kind} PRIVATE tailrace_flags)
  target_precompile_headers(tailrace_headers_${kind} PRIVATE ${${kind}_headers})
endforeach()
target_link_libraries(tailrace_headers_test PRIVATE GTest::gtest)
target_compile_definitions(tailrace_headers_test PRIVATE TAILRACE_TESTS)

# For -Og and -O1 beside headers of -O2: g++ 13 and newer set these on x86-64 from -O2 on, and take no
# precompiled header of other settings. They change nothing in code without unrolling and AVX.
set(as_headers "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13
   AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(as_headers ";-munroll-only-small-loops;-mvzeroupper")
endif()

function(tailrace_library NAME)
  cmake_parse_arguments(ARG "O1" "HEADERS" "SOURCES;COLD;DEPENDS;LIBS" ${ARGN})
  if(ARG_SOURCES OR ARG_COLD)
    if(NOT ARG_HEADERS)
      set(ARG_HEADERS all)
    endif()
    set(sources ${ARG_SOURCES} ${ARG_COLD})
    list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set(parts tailrace_${NAME})
    if(ARG_COLD)
      add_library(tailrace_${NAME}_cold OBJECT ${ARG_COLD})
      target_compile_options(tailrace_${NAME}_cold PRIVATE "$<$<CONFIG:Release>:-Og;${wrong_at_og}${as_headers}>")
      list(APPEND parts tailrace_${NAME}_cold)
    endif()
    add_library(tailrace_${NAME} STATIC ${ARG_SOURCES})
    if(ARG_O1)
      target_compile_options(tailrace_${NAME} PRIVATE "$<$<CONFIG:Release>:-O1${as_headers}>")
    endif()
    if(ARG_COLD)
      target_link_libraries(tailrace_${NAME} PRIVATE tailrace_${NAME}_cold)
    endif()
    set_target_properties(tailrace_${NAME} PROPERTIES TAILRACE_SOURCES "${sources}")
    foreach(part IN LISTS parts)
      target_link_libraries(${part} PUBLIC tailrace_flags ${ARG_DEPENDS} PRIVATE ${ARG_LIBS})
      if(NOT ARG_HEADERS STREQUAL "none")
        target_precompile_headers(${part} REUSE_FROM tailrace_headers_${ARG_HEADERS})
      endif()
    endforeach()
  else()
    add_library(tailrace_${NAME} INTERFACE)
    target_link_libraries(tailrace_${NAME} INTERFACE tailrace_flags ${ARG_DEPENDS} ${ARG_LIBS})
  endif()
  add_library(tailrace::${NAME} ALIAS tailrace_${NAME})
endfunction()

# Puts the text of files of the repository into the library NAME (one with COLD sources), where
# `std::span<const EmbeddedFile> FUNCTION()` gives it.
function(tailrace_embed NAME)
  cmake_parse_arguments(ARG "" "FUNCTION" "FILES" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${ARG_FUNCTION}.cc)
  list(JOIN ARG_FILES "," files)
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_SOURCE_DIR}/)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DFUNCTION=${ARG_FUNCTION} -DROOT=${CMAKE_SOURCE_DIR}
            -DFILES=${files} -P ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
    DEPENDS ${ARG_FILES} ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
    VERBATIM)
  target_sources(tailrace_${NAME}_cold PRIVATE ${out})
endfunction()

include(GoogleTest)
# main() of all tests, and golden text. `update-golden` runs the tests that were declared with GOLDEN.
add_library(tailrace_testing STATIC ${CMAKE_SOURCE_DIR}/tests/golden/golden.cc)
target_link_libraries(tailrace_testing PUBLIC tailrace_flags GTest::gtest)
target_compile_definitions(tailrace_testing PRIVATE TAILRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
add_custom_target(update-golden)
# Programs of which every test is long: `make check` builds and runs them, `make test` does neither.
add_custom_target(long_tests)
# LONG: a filter of tests that take long, whose label is `long`.
# SKIPPED_BY: the program is one test of ctest, skipped where it prints that. RUN_SERIAL: ctest runs
# nothing beside its tests.
# gpu_tests.txt has a line for each with the label gpu, which bench/gpu.sh reads: name, path of the
# program in the build, filter.
file(WRITE ${CMAKE_BINARY_DIR}/gpu_tests.txt "")
function(tailrace_test NAME)
  cmake_parse_arguments(ARG "GOLDEN;RUN_SERIAL" "TIMEOUT;FILTER;LONG;SKIPPED_BY" "FILES;DEPENDS;LIBS;LABELS" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_SOURCE_DIR}/tests/)
  add_executable(${NAME} ${ARG_FILES})
  # Sources that are no tests stand alone: some of them replace functions of the whole program.
  list(FILTER ARG_FILES EXCLUDE REGEX "_test\\.cc$")
  if(ARG_FILES)
    set_source_files_properties(${ARG_FILES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_link_libraries(${NAME} PRIVATE tailrace_flags ${ARG_DEPENDS} ${ARG_LIBS} tailrace_testing)
  target_precompile_headers(${NAME} REUSE_FROM tailrace_headers_test)
  set_target_properties(${NAME} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  target_compile_options(${NAME} PRIVATE "$<$<CONFIG:Release>:-Og;${wrong_in_tests}${as_headers}>")
  target_compile_definitions(${NAME} PRIVATE TAILRACE_TESTS TAILRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TAILRACE_BINARY="${CMAKE_BINARY_DIR}/tailrace")
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    # Beside other work a test may take ten times as long.
    set(ARG_TIMEOUT 300)
  endif()
  if(TAILRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  if(ARG_GOLDEN)
    add_custom_target(update-golden-${NAME} COMMAND ${NAME} --update-golden --gtest_brief=1)
    add_dependencies(update-golden update-golden-${NAME})
  endif()
  set(properties "")
  if(TAILRACE_SANITIZE STREQUAL "thread")
    set(properties ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/thread_sanitizer.supp")
  endif()
  if(ARG_RUN_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  if(ARG_SKIPPED_BY)
    if(NOT ARG_FILTER)
      set(ARG_FILTER "*")
    endif()
    add_test(NAME ${NAME} COMMAND ${NAME} --gtest_brief=1 --gtest_filter=${ARG_FILTER})
    if("gpu" IN_LIST ARG_LABELS)
      file(RELATIVE_PATH path ${CMAKE_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/${NAME})
      file(APPEND ${CMAKE_BINARY_DIR}/gpu_tests.txt "${NAME}\t${path}\t${ARG_FILTER}\n")
    endif()
    set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      SKIP_REGULAR_EXPRESSION "${ARG_SKIPPED_BY}" ${properties})
    return()
  endif()
  # Of a program that has the sources of another one the prefix keeps names apart.
  set(prefix "")
  if(ARG_FILTER)
    set(prefix TEST_PREFIX "${NAME}.")
  endif()
  if(ARG_LONG)
    gtest_discover_tests(${NAME} DISCOVERY_TIMEOUT 60 TEST_FILTER "${ARG_LONG}" ${prefix} TEST_LIST ${NAME}_long
      PROPERTIES LABELS "long" TIMEOUT ${ARG_TIMEOUT} ${properties})
    if(NOT ARG_FILTER)
      set(ARG_FILTER "-${ARG_LONG}")
    elseif(ARG_FILTER MATCHES "-")
      set(ARG_FILTER "${ARG_FILTER}:${ARG_LONG}")
    else()
      set(ARG_FILTER "${ARG_FILTER}-${ARG_LONG}")
    endif()
  endif()
  set(chosen "")
  if(ARG_FILTER)
    set(chosen TEST_FILTER "${ARG_FILTER}")
  endif()
  gtest_discover_tests(${NAME} DISCOVERY_TIMEOUT 60 ${chosen} ${prefix}
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ${properties})
  if(ARG_LABELS MATCHES "long")
    set_target_properties(${NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(long_tests ${NAME})
    # ctest would take one that is not built for a test that fails.
    get_property(files DIRECTORY PROPERTY TEST_INCLUDE_FILES)
    list(POP_BACK files include)
    string(REPLACE "_include.cmake" "_tests.cmake" tests "${include}")
    set(include ${CMAKE_CURRENT_BINARY_DIR}/${NAME}_where_built.cmake)
    file(WRITE ${include} "if(EXISTS \"${tests}\")\n  include(\"${tests}\")\nendif()\n")
    set_property(DIRECTORY PROPERTY TEST_INCLUDE_FILES ${files} ${include})
  endif()
endfunction()

# Tests of a declared test program (a filter) again on instruction sets that may not be the widest;
# skipped where the machine lacks it. Not under the thread sanitizer, which would take half an hour:
# threads divide the work of each alike.
function(tailrace_test_isa NAME)
  cmake_parse_arguments(ARG "" "avx512;avx2;portable" "" ${ARGN})
  if(TAILRACE_SANITIZE STREQUAL "thread")
    return()
  endif()
  set(timeout 300)
  if(TAILRACE_SANITIZE)
    set(timeout 1800)
  endif()
  foreach(path IN ITEMS avx512 avx2 portable)
    if(NOT ARG_${path})
      continue()
    endif()
    add_test(NAME ${NAME}.${path} COMMAND ${NAME} --gtest_brief=1 --gtest_filter=${ARG_${path}})
    set_tests_properties(${NAME}.${path} PROPERTIES ENVIRONMENT TAILRACE_ISA=${path} LABELS parity TIMEOUT ${timeout}
      SKIP_REGULAR_EXPRESSION "TAILRACE_ISA is ${path}; this machine has")
  endforeach()
endfunction()

# The binary of a bench is build/bench/NAME, where `tailrace bench NAME` finds it. benches.txt beside
# it names every bench and what it measures, built or not.
file(WRITE ${CMAKE_BINARY_DIR}/bench/benches.txt "")
function(tailrace_bench NAME)
  cmake_parse_arguments(ARG "" "MEASURES" "FILES;DEPENDS;LIBS" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_SOURCE_DIR}/bench/)
  add_executable(bench_${NAME} ${ARG_FILES})
  target_link_libraries(bench_${NAME} PRIVATE tailrace_flags tailrace::bench_report ${ARG_DEPENDS} ${ARG_LIBS})
  # What has kernels of its own has other instructions than these headers, and is compiled as they
  # are: each file alone.
  if("tailrace::host_isa" IN_LIST ARG_DEPENDS)
    set_target_properties(bench_${NAME} PROPERTIES UNITY_BUILD OFF)
  else()
    target_precompile_headers(bench_${NAME} REUSE_FROM tailrace_headers_all)
  endif()
  target_compile_definitions(bench_${NAME} PRIVATE TAILRACE_MEASURES="${ARG_MEASURES}")
  set_target_properties(bench_${NAME} PROPERTIES
    OUTPUT_NAME ${NAME} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  file(APPEND ${CMAKE_BINARY_DIR}/bench/benches.txt "${NAME}\t${ARG_MEASURES}\n")
endfunction()
