# The parts of a report, carried inside the program: web/README.md.
find_program(NPM npm)
set(plots ${CMAKE_BINARY_DIR}/web/plots.js)
set(web ${CMAKE_SOURCE_DIR}/web)
add_custom_command(OUTPUT ${plots}
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${web} -D WORK=${CMAKE_BINARY_DIR}/web -D OUTPUT=${plots} -D "NPM=$<IF:$<BOOL:${NPM}>,${NPM},>"
    -P ${web}/bundle.cmake
  DEPENDS ${web}/package-lock.json ${web}/bundle.cmake VERBATIM COMMENT "Fetching the plotting library")
set(report_assets ${CMAKE_SOURCE_DIR}/src/cli/report_assets.cpp)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/rack/switch/live_page.cpp PROPERTIES
  OBJECT_DEPENDS "${web}/live.html;${web}/live.js" COMPILE_DEFINITIONS "SLUICE_WEB=\"${web}\"")
set_source_files_properties(${report_assets} PROPERTIES
  OBJECT_DEPENDS "${plots};${web}/report.html;${web}/report.js"
  COMPILE_DEFINITIONS "SLUICE_PLOTS=\"${plots}\";SLUICE_WEB=\"${web}\"")
add_custom_target(sluice_web DEPENDS ${plots})
add_dependencies(sluice_cli sluice_web)
