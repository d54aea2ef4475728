# make install: headers, libraries, program, pkg-config files, CMake package.

include(CMakePackageConfigHelpers)

if(GMA_EMULATE)
  install(CODE "message(FATAL_ERROR \"a build with GMA_EMULATE is for tests and is not installed\")")
endif()

set(headers attention base gma mixer)
set(targets gma gma_static)
set(modules gma)
if(GMA_LM)
  file(GLOB lm_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include/gma ${PROJECT_SOURCE_DIR}/include/gma/*.h)
  list(TRANSFORM lm_headers REPLACE "\\.h$" "")
  list(APPEND headers ${lm_headers})
  list(REMOVE_DUPLICATES headers)
  list(APPEND targets gma_lm gma_lm_static)
  list(APPEND modules gma_lm)
  install(TARGETS gma_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/gma/)
list(TRANSFORM headers APPEND .h)
install(FILES ${headers} ${PROJECT_BINARY_DIR}/include/gma/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gma)
install(TARGETS ${targets} EXPORT gmaTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

# The licence goes wherever the library goes.
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# CMake: gma::gma, gma::gma_static, gma::gma_lm, gma::gma_lm_static
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/gma)
install(EXPORT gmaTargets NAMESPACE gma:: DESTINATION ${config_folder})
configure_package_config_file(cmake/in/gmaConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/gmaConfig.cmake
                              INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/gmaConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/gmaConfig.cmake ${PROJECT_BINARY_DIR}/cmake/gmaConfigVersion.cmake
        DESTINATION ${config_folder})

# pkg-config; the prefix is found from where the file lies, so an installed tree may be moved or chosen late
# (cmake --install --prefix).
file(RELATIVE_PATH GMA_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" GMA_PC_TO_PREFIX "${GMA_PC_TO_PREFIX}")
set(GMA_PC_PRIVATE "-lm")
if(GMA_HAVE_OPENMP)
  string(PREPEND GMA_PC_PRIVATE "${OpenMP_C_FLAGS} ")
endif()
set(GMA_PC_ONEDNN "")
if(GMA_LM AND GMA_HAVE_ONEDNN)
  set(GMA_PC_ONEDNN "-ldnnl ")
endif()
foreach(module IN LISTS modules)
  configure_file(cmake/in/${module}.pc.in ${PROJECT_BINARY_DIR}/pkgconfig/${module}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/pkgconfig/${module}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
