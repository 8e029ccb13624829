# The steering program for the kernel (src/xdp): compiled by clang for BPF and embedded by bpftool's skeleton. Optional.

find_library(BPF_LIBRARY bpf)
find_program(BPF_CLANG NAMES clang-14 clang)
find_program(BPFTOOL bpftool PATHS /usr/sbin /sbin)
if(BPF_LIBRARY AND BPF_CLANG AND BPFTOOL)
  set(SLUICE_HAS_XDP ON)
else()
  set(SLUICE_HAS_XDP OFF)
  message(STATUS "XDP: not built (libbpf: ${BPF_LIBRARY}, clang: ${BPF_CLANG}, bpftool: ${BPFTOOL}); scripts/install-packages has them")
endif()

# sluice_bpf(TARGET SOURCE): TARGET compiles with the skeleton NAME.skel.h of the program NAME.bpf.c.
function(sluice_bpf target source)
  get_filename_component(name ${source} NAME_WE)
  set(out ${CMAKE_BINARY_DIR}/generated/bpf)
  file(MAKE_DIRECTORY ${out})
  set(machine)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(machine -D__TARGET_ARCH_x86)
  endif()
  add_custom_command(OUTPUT ${out}/${name}.bpf.o DEPFILE ${out}/${name}.bpf.d DEPENDS ${source}
    COMMAND ${BPF_CLANG} -O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3 ${machine} -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}
      -idirafter /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} -MD -MF ${out}/${name}.bpf.d -MT ${out}/${name}.bpf.o
      -c ${source} -o ${out}/${name}.bpf.o
    VERBATIM)
  add_custom_command(OUTPUT ${out}/${name}.skel.h DEPENDS ${out}/${name}.bpf.o
    COMMAND ${BPFTOOL} gen skeleton ${out}/${name}.bpf.o name ${name}_bpf > ${out}/${name}.skel.h)
  add_custom_target(sluice_bpf_${name} DEPENDS ${out}/${name}.skel.h)
  add_dependencies(${target} sluice_bpf_${name})
  target_include_directories(${target} SYSTEM PRIVATE ${out})
  target_compile_definitions(${target} PRIVATE SLUICE_HAS_XDP)
  target_link_libraries(${target} PUBLIC ${BPF_LIBRARY})
endfunction()
