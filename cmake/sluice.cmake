# The build's own words: sluice_module, warnings, sanitizers.

add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-align
  -Woverloaded-virtual -Wnull-dereference -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 warns falsely inside inlined standard containers, and of coroutines' own frames.
  target_compile_options(sluice_options INTERFACE -Wno-null-dereference -Wno-stringop-overflow -Wno-array-bounds
    -Wno-maybe-uninitialized -Wno-restrict)
else()
  target_compile_options(sluice_options INTERFACE -Wno-string-conversion)  # SLUICE_CHECK(!"why this cannot be")
endif()
target_include_directories(sluice_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
function(sluice_sanitize sanitizers)
  target_compile_options(sluice_options INTERFACE -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(sluice_options INTERFACE -fsanitize=${sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # clang 14 cannot assemble coroutines under -fsanitize=function ("cannot represent a difference across sections").
    target_compile_options(sluice_options INTERFACE -fno-sanitize=function)
  endif()
endfunction()
if(SLUICE_SANITIZE)
  sluice_sanitize(${SLUICE_SANITIZE})
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(SLUICE_FUZZ AND SLUICE_FUZZ_SANITIZERS)
  sluice_sanitize(${SLUICE_FUZZ_SANITIZERS})
endif()

set(SLUICE_LTO_USED OFF)
if(SLUICE_LTO AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT SLUICE_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(SLUICE_LTO_USED ON)
endif()

if(SLUICE_LTO_USED)
  target_link_options(sluice_options INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:SLUICE_OPTIMISED>>>:-fno-lto>)
endif()

# sluice_hot(NAME...): modules of the data path. Fat objects: what sluice_optimised() does not name links their plain code.
function(sluice_hot)
  foreach(name ${ARGN})
    target_compile_options(sluice_${name} PRIVATE -fno-semantic-interposition)  # inline calls though the code may move
    if(SLUICE_LTO_USED)
      target_compile_options(sluice_${name} PRIVATE -O3 -flto -ffat-lto-objects)
    endif()
  endforeach()
endfunction()

# sluice_outer(TARGET...): what computes little: the outer rooms and most tests. Under sanitizers an optimiser takes most of the time that a build
# does. Not tests that compute for long: the linker takes a test's plain copies of what is inline in the headers for everybody's.
function(sluice_outer)
  if(SLUICE_PLAIN_OUTSIDE)
    foreach(target ${ARGN})
      if(TARGET ${target})  # there may be no tests
        target_compile_options(${target} PRIVATE -O0)
      endif()
    endforeach()
  endif()
endfunction()

# sluice_precompiled(TARGET SOURCES HEADER...): where a target has enough files for it to be worth the while.
function(sluice_precompiled target sources)
  list(LENGTH sources count)
  if(SLUICE_PRECOMPILE AND count GREATER 5)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# sluice_optimised(TARGET...): programs and shared libraries to optimise over the borders of the hot modules.
function(sluice_optimised)
  if(NOT SLUICE_LTO_USED)
    return()
  endif()
  foreach(target ${ARGN})
    set_target_properties(${target} PROPERTIES SLUICE_OPTIMISED ON)
    target_link_options(${target} PRIVATE -O3 -flto=2 -Wno-stringop-overflow)  # g++ 12 warns falsely inside fmt
  endforeach()
endfunction()

# sluice_module(NAME [DEPS module...] [LIBS target...])
#   src/NAME/*.cpp        -> library sluice_NAME (main.cpp -> program sluice)
#   src/NAME/*_test.cpp   -> test program NAME_test, run by ctest
function(sluice_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  set(tests ${sources})
  set(mains ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER mains INCLUDE REGEX "/main\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
  list(TRANSFORM ARG_DEPS PREPEND sluice_ OUTPUT_VARIABLE deps)
  if(sources)
    add_library(sluice_${name} STATIC ${sources})
    sluice_precompiled(sluice_${name} "${sources}" ${CMAKE_SOURCE_DIR}/cmake/precompiled.h)
    target_link_libraries(sluice_${name} PUBLIC sluice_options ${deps} ${ARG_LIBS})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_options ${deps} ${ARG_LIBS})
  endif()
  if(mains)
    add_executable(sluice_${name}_main ${mains})
    set_target_properties(sluice_${name}_main PROPERTIES OUTPUT_NAME sluice RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    target_link_libraries(sluice_${name}_main PRIVATE sluice_${name})
    sluice_optimised(sluice_${name}_main)
  endif()
  if(tests AND SLUICE_TESTS)
    sluice_test(${name}_test SOURCES ${tests} LIBS sluice_${name})
  endif()
endfunction()

# All programs of sluice_test(): what a build with sanitizers needs.
add_custom_target(unit_tests)

# sluice_test(NAME SOURCES file... LIBS target...): a GoogleTest program whose cases ctest runs one by one.
function(sluice_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  sluice_precompiled(${name} "${ARG_SOURCES}" ${CMAKE_SOURCE_DIR}/cmake/precompiled.h <gmock/gmock.h> <gtest/gtest.h>)
  add_dependencies(unit_tests ${name})
  target_link_libraries(${name} PRIVATE sluice_options ${ARG_LIBS} GTest::gmock_main)
  target_compile_definitions(${name} PRIVATE SLUICE_REFERENCE_DIR="${SLUICE_REFERENCE_DIR}"
    SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  # Against hanging, not against being slow: sanitizers take eight times as long, a busy machine twice that.
  set(timeout 600)
  if(SLUICE_SANITIZE)
    set(timeout 2400)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS unit)
endfunction()

# sluice_drop_in(NAME): libNAME.so.1 for programs that open it by name, with all that this machine's libNAME.so exports, over
# libsluice-verbs.so.
function(sluice_drop_in name)
  find_library(SLUICE_REAL_${name} ${name} REQUIRED)
  find_program(SLUICE_PYTHON NAMES python3 REQUIRED)
  set(assembler ${CMAKE_BINARY_DIR}/generated/drop_in_${name}.s)
  set(map ${CMAKE_BINARY_DIR}/generated/drop_in_${name}.map)
  set(tool ${CMAKE_SOURCE_DIR}/cmake/drop_in.py)
  add_custom_command(OUTPUT ${assembler} ${map} DEPENDS ${tool} ${SLUICE_REAL_${name}} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/generated
    COMMAND ${SLUICE_PYTHON} ${tool} ${SLUICE_REAL_${name}} ${assembler} ${map})
  # clang warns of every option that an assembler has no use for.
  set_source_files_properties(${assembler} PROPERTIES GENERATED ON LANGUAGE ASM COMPILE_OPTIONS -Wno-unused-command-line-argument)
  set(target drop-in-${name})
  add_library(${target} SHARED ${CMAKE_SOURCE_DIR}/src/drop_in/drop_in.cpp ${assembler})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} SOVERSION 1 LINK_DEPENDS ${map}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/drop-in BUILD_RPATH "$ORIGIN;$ORIGIN/.." INSTALL_RPATH "$ORIGIN;$ORIGIN/.."
    BUILD_WITH_INSTALL_RPATH ON)
  target_link_libraries(${target} PRIVATE sluice_options -Wl,--no-as-needed sluice-verbs ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE -Wl,--version-script=${map} -static-libstdc++ -static-libgcc)
endfunction()

# The verbs module as what programs preload: libsluice-verbs.so, with nothing in sight but the ABI.
function(sluice_verbs_library)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/verbs_library.cpp CONTENT "")
  add_library(sluice-verbs SHARED ${CMAKE_BINARY_DIR}/verbs_library.cpp)
  set(map ${CMAKE_SOURCE_DIR}/src/verbs/libsluice-verbs.map)
  set_target_properties(sluice-verbs PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LINK_DEPENDS ${map})
  target_link_libraries(sluice-verbs PRIVATE -Wl,--whole-archive sluice_verbs -Wl,--no-whole-archive)
  sluice_optimised(sluice-verbs)
  target_link_options(sluice-verbs PRIVATE -Wl,--version-script=${map} -static-libstdc++ -static-libgcc)
endfunction()

# sluice_c_library(TARGET NAME MODULE MAJOR): libNAME.so.MAJOR, which exports the module's C interface (MODULE/MODULE.map) and nothing else.
function(sluice_c_library target name module major)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${module}_library.cpp CONTENT "")
  add_library(${target} SHARED ${CMAKE_BINARY_DIR}/${module}_library.cpp)
  set(map ${CMAKE_SOURCE_DIR}/src/${module}/${module}.map)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LINK_DEPENDS ${map}
    VERSION ${major}.0.0 SOVERSION ${major})
  target_link_libraries(${target} PRIVATE -Wl,--whole-archive sluice_${module} -Wl,--no-whole-archive)
  target_link_options(${target} PRIVATE -Wl,--version-script=${map})
  if(SLUICE_SANITIZE)  # of whose runtime a C program has none, nor of C++
    target_link_options(${target} INTERFACE -fsanitize=${SLUICE_SANITIZE} $<$<C_COMPILER_ID:Clang>:-fsanitize-link-c++-runtime>)
    target_link_libraries(${target} INTERFACE stdc++)
  endif()
endfunction()
