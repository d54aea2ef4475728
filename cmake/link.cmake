# Names, versions, include paths and link lines of the libraries: the same for the shared and the static form.

function(gma_library shared static name)
  foreach(target IN ITEMS ${shared} ${static})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
  endforeach()
  set_target_properties(${shared} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                             INSTALL_RPATH "$ORIGIN")
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
set_target_properties(gma PROPERTIES EXPORT_NAME gma)
set_target_properties(gma_static PROPERTIES EXPORT_NAME gma_static)

if(GMA_LM)
  gma_library(gma_lm gma_lm_static gma_lm)
  target_link_libraries(gma_lm PUBLIC gma PRIVATE ${GMA_LM_LIBRARIES} m)
  target_link_libraries(gma_lm_static PUBLIC gma_static PRIVATE ${GMA_LM_LIBRARIES} m)
  file(RELATIVE_PATH to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  target_link_libraries(gma_cli PRIVATE gma_lm gma m)
  set_target_properties(gma_cli PROPERTIES OUTPUT_NAME gma INSTALL_RPATH "$ORIGIN/${to_lib}")
endif()
