# What every target of this project is compiled with.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# The versions the project is checked with stop at a warning; a newer compiler may know warnings we have not seen.
set(werror_default OFF)
if((CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
   OR (CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 15))
  set(werror_default ON)
endif()
option(GMA_WERROR "Warnings are errors" ${werror_default})
set(GMA_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: address,undefined or thread")

# Contraction is pinned because compilers differ in what they contract by default; kernels write fma explicitly.
set(GMA_C_OPTIONS -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla)
if(GMA_WERROR)
  list(APPEND GMA_C_OPTIONS -Werror)
endif()
if(NOT GMA_HAVE_OPENMP)
  list(APPEND GMA_C_OPTIONS -Wno-unknown-pragmas)
endif()
if(GMA_SANITIZE)
  add_compile_options(-fsanitize=${GMA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GMA_SANITIZE})
endif()

function(gma_target_defaults target)
  target_compile_options(${target} PRIVATE ${GMA_C_OPTIONS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include
                                               ${PROJECT_SOURCE_DIR}/src)
  if(GMA_HAVE_OPENMP)
    target_compile_options(${target} PRIVATE ${OpenMP_C_FLAGS})
  endif()
endfunction()

# gma_sources(<out> <folder>...): every .c below src/<folder>, except those of a kernels/ folder.
function(gma_sources out)
  set(all "")
  foreach(folder IN LISTS ARGN)
    # Relative: the folder the checkout itself lies in may be called anything.
    file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.c)
    list(FILTER files EXCLUDE REGEX "/kernels/")
    list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/src/)
    list(APPEND all ${files})
  endforeach()
  set(${out} ${all} PARENT_SCOPE)
endfunction()
