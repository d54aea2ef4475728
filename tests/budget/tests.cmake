# The hot functions may not need more instructions than recorded for this compiler; see check.sh.
if(NOT GMA_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" version ${CMAKE_C_COMPILER_VERSION})
  add_executable(budget_run_op ${CMAKE_CURRENT_LIST_DIR}/run_op.c)
  gma_target_defaults(budget_run_op)
  target_link_libraries(budget_run_op PRIVATE gma_static)
  list(FIND GMA_TIERS avx2 has_avx2)
  if(has_avx2 GREATER_EQUAL 0)
    set(has_avx2 1)
  else()
    set(has_avx2 0)
  endif()
  add_test(NAME budget.op
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/check.sh $<TARGET_FILE:budget_run_op> ${CMAKE_C_COMPILER_ID}-${version}
                   $<CONFIG> ${has_avx2} ${PROJECT_BINARY_DIR}/tests/budget)
  set_tests_properties(budget.op PROPERTIES LABELS budget TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
