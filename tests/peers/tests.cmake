# Comparisons with independent implementations in Python. A check whose packages are missing says so and counts as skipped.
# GMA_PEERS_PYTHON: an interpreter that has them, where that is not the first python3.
find_program(GMA_PEERS_PYTHON python3)
if(GMA_PEERS_PYTHON AND NOT GMA_SANITIZE)
  add_test(NAME peers.softmax COMMAND ${GMA_PEERS_PYTHON} ${PROJECT_SOURCE_DIR}/bench/check_softmax.py $<TARGET_FILE:gma>)
  set_tests_properties(peers.softmax PROPERTIES LABELS peers TIMEOUT 300 SKIP_RETURN_CODE 77)
  foreach(mixer performer linformer mamba)
    add_test(NAME peers.${mixer}
      COMMAND ${GMA_PEERS_PYTHON} ${PROJECT_SOURCE_DIR}/bench/check_mixers.py $<TARGET_FILE:gma> ${mixer})
    set_tests_properties(peers.${mixer} PROPERTIES LABELS peers TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()
