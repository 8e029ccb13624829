// A file put into the program at build time: SLUICE_EMBED("name", "path") in a .cpp file, outside every namespace; then
// extern "C" const char sluice_name_begin[], sluice_name_end[] (a zero follows).
#pragma once

// clang-format off
#define SLUICE_EMBED(name, file)                    \
  asm(".section .rodata\n"                          \
      ".global sluice_" name "_begin\n"             \
      ".global sluice_" name "_end\n"               \
      "sluice_" name "_begin:\n"                    \
      ".incbin \"" file "\"\n"                      \
      "sluice_" name "_end:\n"                      \
      ".byte 0\n"                                   \
      ".previous\n")
// clang-format on
