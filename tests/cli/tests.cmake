# The option table is part of the program, not of a library.
target_sources(test_cli_options PRIVATE ${PROJECT_SOURCE_DIR}/cli/options.c ${PROJECT_SOURCE_DIR}/cli/json.c)
foreach(target IN ITEMS test_cli_options test_cli_program test_cli_op)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endforeach()
foreach(target IN ITEMS test_cli_bench test_cli_bench_train)
  target_link_libraries(${target} PRIVATE PkgConfig::JANSSON)
endforeach()
