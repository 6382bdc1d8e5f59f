# `make package`, for machines without a compiler, of one component each:
#
#   tailrace_VERSION_ARCH.deb     on Debian's own libraries, which it names as what it depends on
#   tailrace-VERSION-ARCH.tar.gz  with every library but glibc in lib/tailrace, beside the binary, and
#                                 their licences; it runs where it is unpacked
#
# Both hold the component `tailrace` of Install.cmake; the archive has `libraries` besides.

set(CPACK_PACKAGE_NAME tailrace)
set(CPACK_PACKAGE_VENDOR "The Tailrace authors")
set(CPACK_PACKAGE_CONTACT "The Tailrace authors <tailrace@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Post-trains LLM agents with reinforcement learning")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME tailrace-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_FILE_EXTENSION ".tar.gz")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/PackageParts.cmake)

# As the loader finds them, with what they need themselves; glibc is each machine's own.
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES "$<TARGET_FILE:tailrace>"
    RESOLVED_DEPENDENCIES_VAR libraries
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|nss_[a-z]+)\\.so")
  foreach(library IN LISTS libraries)
    file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/tailrace" TYPE SHARED_LIBRARY
         FOLLOW_SYMLINK_CHAIN FILES "${library}")
    # Debian's list has /lib where the file system has /usr/lib, or the other way round.
    file(REAL_PATH "${library}" path)
    string(REGEX MATCH "/[^/]+/[^/]+$" path "${path}")
    execute_process(COMMAND dpkg-query -S "*${path}" OUTPUT_VARIABLE owner ERROR_QUIET)
    string(REGEX REPLACE "[:,].*" "" owner "${owner}")
    set(licence "/usr/share/doc/${owner}/copyright")
    if(owner AND EXISTS "${licence}")
      file(REAL_PATH "${licence}" licence)
      configure_file("${licence}" "${CMAKE_INSTALL_PREFIX}/share/doc/tailrace/licences/${owner}" COPYONLY)
    else()
      message(FATAL_ERROR "${library}: no licence is found for it, so it cannot be handed on")
    endif()
  endforeach()
]] COMPONENT libraries EXCLUDE_FROM_ALL)

include(CPack)
