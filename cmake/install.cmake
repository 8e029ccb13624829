# What `cmake --install` puts where, and the Debian packages that `cpack` makes of it: a component each.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packages need neither tests nor benchmarks

# Manual pages and completions, as the program itself knows them.
set(reference ${CMAKE_BINARY_DIR}/generated/reference)
add_custom_command(OUTPUT ${reference}/made DEPENDS sluice_cli_main VERBATIM
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${reference}
  COMMAND $<TARGET_FILE:sluice_cli_main> man --out ${reference}/man1
  COMMAND sh -c "for s in bash zsh fish; do \"$0\" completion $s >\"$1/sluice.$s\" || exit 1; done" $<TARGET_FILE:sluice_cli_main>
    ${reference}
  COMMAND ${CMAKE_COMMAND} -E touch ${reference}/made)
add_custom_target(sluice_reference ALL DEPENDS ${reference}/made)

install(TARGETS sluice_cli_main RUNTIME COMPONENT sluice)
install(DIRECTORY experiments DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice COMPONENT sluice)
# Services: docs/operate.md.
set(units packaging/systemd)
# What depends on where it all is put, which is known only then.
install(CODE "
  file(GLOB units \"${CMAKE_SOURCE_DIR}/${units}/*.service\" \"${CMAKE_SOURCE_DIR}/${units}/*.target\")
  foreach(unit IN LISTS units)
    cmake_path(GET unit FILENAME name)
    file(READ \"\${unit}\" text)
    string(REPLACE \"/usr/\" \"\${CMAKE_INSTALL_PREFIX}/\" text \"\${text}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/generated/units/\${name}\" \"\${text}\")
    file(INSTALL \"${CMAKE_BINARY_DIR}/generated/units/\${name}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
  endforeach()
  set(zsh site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
    set(zsh vendor-completions)
  endif()
  file(INSTALL \"${reference}/sluice.zsh\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${zsh}\" RENAME _sluice)
" COMPONENT sluice)
install(FILES ${units}/sluice.sysusers DESTINATION lib/sysusers.d RENAME sluice.conf COMPONENT sluice)
install(FILES ${units}/rack.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice COMPONENT sluice)
install(FILES docs/operate.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT sluice)
install(DIRECTORY monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice COMPONENT sluice PATTERN README.md EXCLUDE)
install(DIRECTORY ${reference}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT sluice)
install(FILES ${reference}/sluice.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME sluice COMPONENT sluice)
install(FILES ${reference}/sluice.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT sluice)

install(FILES docs/security.md docs/verbs.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT sluice)

# sluice_copyright(PACKAGE COMPONENT)
function(sluice_copyright package component)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} RENAME copyright COMPONENT ${component})
endfunction()
sluice_copyright(sluice sluice)
sluice_copyright(sluice-verbs sluice-verbs)

# Loaded by path, by programs that `sluice run` starts: no library of the system.
install(TARGETS sluice-verbs LIBRARY DESTINATION lib/sluice COMPONENT sluice-verbs)
install(TARGETS drop-in-ibverbs drop-in-rdmacm LIBRARY DESTINATION lib/sluice/drop-in COMPONENT sluice-verbs)

# sluice_install_library(TARGET NAME HEADER WORDS): libNAME and, apart, what building on it needs: found by the linker, by pkg-config (NAME) and
# by find_package(NAME), which gives NAME::NAME.
function(sluice_install_library target name header words)
  get_target_property(version ${target} VERSION)
  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT ${name} LIBRARY COMPONENT lib${name} NAMELINK_COMPONENT lib${name}-dev)
  install(FILES ${header} TYPE INCLUDE COMPONENT lib${name}-dev)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${name}.pc @ONLY CONTENT [[
prefix=${pcfiledir}/../..
libdir=${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=${prefix}/@CMAKE_INSTALL_INCLUDEDIR@

Name: @name@
Description: @words@
Version: @version@
Libs: -L${libdir} -l@name@
Cflags: -I${includedir}
]])
  install(FILES ${CMAKE_BINARY_DIR}/generated/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT lib${name}-dev)
  install(EXPORT ${name} NAMESPACE ${name}:: FILE ${name}-config.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/${name}
    COMPONENT lib${name}-dev)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/${name}-config-version.cmake VERSION ${version}
    COMPATIBILITY SameMajorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/generated/${name}-config-version.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/${name}
    COMPONENT lib${name}-dev)
endfunction()
sluice_install_library(cowbird cowbird src/libcowbird/cowbird.h "Remote memory for a few stores into local rings")
sluice_install_library(libsluice sluice src/libsluice/sluice.h "The memory of a rack's memory nodes, one-sided")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Sluice <sluice@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Disaggregated memory in software")
set(CPACK_PACKAGE_DESCRIPTION "RoCEv2 NICs, a switch that resolves races in flight, passive memory nodes and stores on them, as
ordinary processes on any Linux machine, and in a simulator.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL sluice sluice-verbs)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SLUICE_PACKAGE_NAME sluice)
set(CPACK_COMPONENT_SLUICE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
set(CPACK_DEBIAN_SLUICE_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/cmake/debian/postinst" "${CMAKE_SOURCE_DIR}/cmake/debian/prerm"
  "${CMAKE_SOURCE_DIR}/cmake/debian/postrm")
set(CPACK_DEBIAN_SLUICE_PACKAGE_RECOMMENDS sluice-verbs)
set(CPACK_COMPONENT_SLUICE-VERBS_DESCRIPTION "Lets unmodified RDMA programs (libibverbs, rdma_cm) run on Sluice's software NIC.")
set(CPACK_DEBIAN_SLUICE-VERBS_PACKAGE_NAME sluice-verbs)
set(CPACK_DEBIAN_SLUICE-VERBS_PACKAGE_DEPENDS "sluice (= ${PROJECT_VERSION})")
# sluice_library_packages(TARGET NAME LIBRARY_WORDS): libNAME and its major version, libNAME-dev.
macro(sluice_library_packages target name library_words)
  get_target_property(soversion ${target} SOVERSION)
  sluice_copyright(lib${name}${soversion} lib${name})
  sluice_copyright(lib${name}-dev lib${name}-dev)
  string(TOUPPER lib${name} upper)
  list(APPEND CPACK_COMPONENTS_ALL lib${name} lib${name}-dev)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${library_words}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME lib${name}${soversion})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION libs)
  # CPack's own way writes one for every library, and the drop-ins of sluice-verbs have names of others.
  file(WRITE ${CMAKE_BINARY_DIR}/generated/lib${name}/shlibs "lib${name} ${soversion} lib${name}${soversion} (>= ${PROJECT_VERSION})\n")
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/cmake/debian/triggers"
    "${CMAKE_BINARY_DIR}/generated/lib${name}/shlibs")
  set(CPACK_COMPONENT_${upper}-DEV_DESCRIPTION "Header, pkg-config and CMake files of lib${name}.")
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_NAME lib${name}-dev)
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_DEPENDS "lib${name}${soversion} (= ${PROJECT_VERSION})")
endmacro()
sluice_library_packages(cowbird cowbird "Cowbird: a program only stores its requests for remote memory; an engine moves the data.")
sluice_library_packages(libsluice sluice "The memory of a rack's memory nodes, one-sided, from any program.")
include(CPack)
