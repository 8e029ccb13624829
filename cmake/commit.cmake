# Writes OUTPUT: the commit that a program was built from, with a + where there were changes besides. Run at every build.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --abbrev=12 --exclude=* --dirty=+ WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define SLUICE_COMMIT \"@commit@\"\n" @ONLY)
