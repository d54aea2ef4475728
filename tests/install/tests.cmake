# Installing a sanitized library would ask its user for the sanitizer; a cross build cannot run what it installs here.
if(NOT GMA_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME install.use
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/run.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR}
                   ${CMAKE_C_COMPILER} ${CMAKE_INSTALL_LIBDIR} $<BOOL:${GMA_LM}>)
  set_tests_properties(install.use PROPERTIES LABELS install TIMEOUT 300)
endif()
