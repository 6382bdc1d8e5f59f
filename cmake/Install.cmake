# What `cmake --install` copies.
#
#   component plugin     the headers of the plugin ABI, the CMake package `Tailrace`, the version script
#   component tailrace   the binary, the configs and the licence
#
# A plugin needs the first component only, and that one needs nothing to be built. The package knows
# none of our own flags and libraries: a plugin is compiled as its author likes.

include(CMakePackageConfigHelpers)

set(TAILRACE_INSTALL_INCLUDE include)
set(TAILRACE_INSTALL_SHARE share/tailrace)
set(TAILRACE_INSTALL_CMAKE lib/cmake/Tailrace)

configure_package_config_file(
  ${CMAKE_SOURCE_DIR}/cmake/TailraceConfig.cmake.in ${CMAKE_BINARY_DIR}/package/TailraceConfig.cmake
  INSTALL_DESTINATION ${TAILRACE_INSTALL_CMAKE}
  PATH_VARS TAILRACE_INSTALL_INCLUDE TAILRACE_INSTALL_SHARE)
# Headers have no architecture. Before 1.0 a minor version may change anything.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/TailraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tailrace DESTINATION ${TAILRACE_INSTALL_INCLUDE}
  COMPONENT plugin FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/package/TailraceConfig.cmake
              ${CMAKE_BINARY_DIR}/package/TailraceConfigVersion.cmake
  DESTINATION ${TAILRACE_INSTALL_CMAKE} COMPONENT plugin)
install(FILES ${CMAKE_SOURCE_DIR}/cmake/plugin.map DESTINATION ${TAILRACE_INSTALL_SHARE} COMPONENT plugin)

install(TARGETS tailrace RUNTIME DESTINATION bin COMPONENT tailrace)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION ${TAILRACE_INSTALL_SHARE}
  COMPONENT tailrace FILES_MATCHING PATTERN "*.yaml" PATTERN "names" EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/NOTICE DESTINATION share/doc/tailrace
  COMPONENT tailrace)
