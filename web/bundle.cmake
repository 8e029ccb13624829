# Makes OUTPUT, the plotting library in one file, from what package-lock.json names. Without npm or network: an empty file and a warning;
# reports then have tables and no plots.
#
#   cmake -D SOURCE=web -D WORK=build/web -D OUTPUT=build/web/plots.js [-D NPM=npm] -P bundle.cmake
file(MAKE_DIRECTORY ${WORK})
set(why "npm is not installed")
if(NPM)
  configure_file(${SOURCE}/package.json ${WORK}/package.json COPYONLY)
  configure_file(${SOURCE}/package-lock.json ${WORK}/package-lock.json COPYONLY)
  execute_process(COMMAND ${NPM} ci --ignore-scripts --no-audit --no-fund WORKING_DIRECTORY ${WORK}
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said TIMEOUT 300)
  if(status EQUAL 0)
    file(READ ${WORK}/node_modules/vega/build/vega.min.js vega)
    file(READ ${WORK}/node_modules/vega-lite/build/vega-lite.min.js vega_lite)
    # "</script" inside of a script would end it.
    string(REPLACE "</script" "<\\/script" both "${vega}\n${vega_lite}\n")
    file(WRITE ${OUTPUT} "${both}")
    return()
  endif()
  set(why "npm ci failed: ${said}")
endif()
message(WARNING "Reports will have no plots: ${why}")
file(WRITE ${OUTPUT} "")
