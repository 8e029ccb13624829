# What Sluice relies on, all from Debian 12. scripts/install-packages lists the packages.

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(PkgConfig REQUIRED)
if(SLUICE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SLUICE_BENCH)
  find_package(benchmark REQUIRED)
  # Optional, for bench/beside_ns3. By hand: its CMake files name a program of another package, its pkg-config files are broken.
  set(NS3_FOUND ON)
  set(NS3_LIBRARIES "")
  foreach(part internet point-to-point bridge traffic-control network core)
    find_library(NS3_${part} ns3-${part})
    list(APPEND NS3_LIBRARIES ${NS3_${part}})
    if(NOT NS3_${part})
      set(NS3_FOUND OFF)
    endif()
  endforeach()
endif()

find_path(EXPECTED_INCLUDE tl/expected.hpp REQUIRED)
add_library(tl-expected INTERFACE)
target_include_directories(tl-expected SYSTEM INTERFACE ${EXPECTED_INCLUDE})

find_library(ISAL_LIBRARY isal REQUIRED)
add_library(sluice_isal INTERFACE)
target_link_libraries(sluice_isal INTERFACE ${ISAL_LIBRARY})

pkg_check_modules(PCAP REQUIRED IMPORTED_TARGET libpcap)
add_library(sluice_pcap INTERFACE)
target_link_libraries(sluice_pcap INTERFACE PkgConfig::PCAP)

# Optional: ports on DPDK's devices. Its headers want the instructions that it was compiled for.
pkg_check_modules(DPDK IMPORTED_TARGET libdpdk)
if(DPDK_FOUND)
  add_library(sluice_libdpdk INTERFACE)
  target_link_libraries(sluice_libdpdk INTERFACE PkgConfig::DPDK)
else()
  message(STATUS "No libdpdk (Debian: dpdk, dpdk-dev): built without dpdk: ports")
endif()

pkg_check_modules(TOMLPP REQUIRED IMPORTED_TARGET tomlplusplus)
# With the flags that it was compiled with: its classes' layout depends on them.
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
add_library(sluice_telemetry_libs INTERFACE)
target_link_libraries(sluice_telemetry_libs INTERFACE nlohmann_json::nlohmann_json PkgConfig::PROMETHEUS PkgConfig::HTTPLIB
  OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
add_library(sluice_rack_libs INTERFACE)
target_link_libraries(sluice_rack_libs INTERFACE spdlog::spdlog nlohmann_json::nlohmann_json PkgConfig::TOMLPP
  SQLite::SQLite3 PkgConfig::HTTPLIB Threads::Threads)

add_library(sluice_sim_libs INTERFACE)
target_link_libraries(sluice_sim_libs INTERFACE PkgConfig::TOMLPP)

add_library(sluice_cli_libs INTERFACE)
target_link_libraries(sluice_cli_libs INTERFACE CLI11::CLI11)

# Optional: sweeps over several machines.
pkg_check_modules(MPI ompi-c)
if(NOT MPI_FOUND)
  message(STATUS "No Open MPI (Debian: openmpi-bin, libopenmpi-dev): built without sluice experiment --distribute mpi")
endif()
