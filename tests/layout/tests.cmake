# Folders, manifests, includes and names agree; see the script.
add_test(NAME layout.check COMMAND ${PROJECT_SOURCE_DIR}/tools/check_layout.sh ${PROJECT_BINARY_DIR})
set_tests_properties(layout.check PROPERTIES LABELS layout)
