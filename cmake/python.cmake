# The library inside the Python package: libgma/libgma.so, one file without a version in its name. pyproject.toml sets
# GMA_PYTHON.
#
# It names no OpenMP runtime. A process that holds two of them runs two pools of threads which disturb each other, and
# PyTorch brings one of its own; libgma/_openmp.py loads that one (or the system's) first, and GOMP_* is found there.
# Only gcc's runtime can be chosen like this; another compiler's is linked as usual.

add_library(gma_python MODULE $<TARGET_OBJECTS:gma_objects> ${gma_kernel_objects})
set_target_properties(gma_python PROPERTIES OUTPUT_NAME gma PREFIX lib SUFFIX .so LINKER_LANGUAGE C
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python)
# -Bsymbolic: our own functions, even where the program that runs Python is itself linked with a libgma.
target_link_options(gma_python PRIVATE -Wl,--as-needed -Wl,-Bsymbolic)
target_link_libraries(gma_python PRIVATE m)
if(GMA_HAVE_OPENMP AND NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
  target_link_libraries(gma_python PRIVATE ${OpenMP_C_FLAGS})
endif()
install(TARGETS gma_python LIBRARY DESTINATION libgma COMPONENT python)
