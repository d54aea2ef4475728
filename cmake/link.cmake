# Names, versions, include paths and link lines of the libraries: the same for the shared and the static form.

# gma_rpath(<target> <folder>...): where it looks for our libraries, seen from itself; the same before and after
# installing, so that nothing has to be patched (CMake pads what it will patch with empty entries, which mean ".").
function(gma_rpath target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON
                                             INSTALL_RPATH "${ARGN}")
endfunction()

function(gma_library shared static name)
  foreach(target IN ITEMS ${shared} ${static})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
  endforeach()
  set_target_properties(${shared} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  # A sanitized library leaves the runtime to the program that loads it.
  if(NOT GMA_SANITIZE)
    target_link_options(${shared} PRIVATE -Wl,--no-undefined)
  endif()
  target_link_options(${shared} PRIVATE -Wl,--as-needed)
endfunction()

gma_library(gma gma_static gma)
foreach(target IN ITEMS gma gma_static)
  target_link_libraries(${target} PRIVATE m)
  if(GMA_HAVE_OPENMP)
    target_link_libraries(${target} PRIVATE ${OpenMP_C_FLAGS})
  endif()
endforeach()
gma_rpath(gma)

if(GMA_LM)
  gma_library(gma_lm gma_lm_static gma_lm)
  target_link_libraries(gma_lm PUBLIC gma PRIVATE ${GMA_LM_LIBRARIES} m)
  target_link_libraries(gma_lm_static PUBLIC gma_static PRIVATE ${GMA_LM_LIBRARIES} m)
  target_link_libraries(gma_cli PRIVATE gma_lm gma m)
  set_target_properties(gma_cli PROPERTIES OUTPUT_NAME gma)
  file(RELATIVE_PATH to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set(places $ORIGIN/../lib $ORIGIN/${to_lib})
  list(REMOVE_DUPLICATES places)
  gma_rpath(gma_lm $ORIGIN)
  gma_rpath(gma_cli ${places})
endif()
