# libgma_lm and the program gma. Dense products go through oneDNN where it is found (GMA_ONEDNN), else through our own.

if(NOT PkgConfig_FOUND)
  message(FATAL_ERROR "pkg-config was not found; it is needed to find jansson (or configure with -DGMA_LM=OFF)")
endif()
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)

set(GMA_HAVE_ONEDNN OFF)
if(NOT GMA_ONEDNN STREQUAL "OFF")
  find_path(DNNL_INCLUDE_DIR dnnl.h)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(GMA_HAVE_ONEDNN ON)
  elseif(GMA_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "oneDNN was not found (dnnl.h, libdnnl); configure with -DGMA_ONEDNN=OFF to build without it")
  endif()
endif()

# By plain name for those who link the installed static library: their paths need not be ours.
set(GMA_LM_LIBRARIES $<BUILD_INTERFACE:PkgConfig::JANSSON> $<INSTALL_INTERFACE:jansson>)
gma_sources(gma_lm_files layers models train data io report inspect)
gma_add_kernels(gma_lm_kernels ${PROJECT_SOURCE_DIR}/src/layers/kernels gma_lm_kernel_objects)
add_library(gma_lm_objects OBJECT ${gma_lm_files})
gma_target_defaults(gma_lm_objects)
target_compile_definitions(gma_lm_objects PRIVATE ${GMA_TIER_DEFINITIONS})
target_include_directories(gma_lm_objects PRIVATE ${JANSSON_INCLUDE_DIRS})
if(GMA_HAVE_ONEDNN)
  target_compile_definitions(gma_lm_objects PRIVATE GMAL_HAVE_ONEDNN)
  target_include_directories(gma_lm_objects SYSTEM PRIVATE ${DNNL_INCLUDE_DIR})
  list(APPEND GMA_LM_LIBRARIES $<BUILD_INTERFACE:${DNNL_LIBRARY}> $<INSTALL_INTERFACE:dnnl>)
endif()
if(GMA_HAVE_OPENMP)
  list(APPEND GMA_LM_LIBRARIES ${OpenMP_C_FLAGS})
endif()

add_library(gma_lm SHARED $<TARGET_OBJECTS:gma_lm_objects> ${gma_lm_kernel_objects})
add_library(gma_lm_static STATIC $<TARGET_OBJECTS:gma_lm_objects> ${gma_lm_kernel_objects})

# The program sees the public headers and its own folder only.
file(GLOB cli_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.c)
add_executable(gma_cli ${cli_files})
target_compile_options(gma_cli PRIVATE ${GMA_C_OPTIONS})
target_include_directories(gma_cli PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(gma_cli PRIVATE GMA_CLI_OPENMP=$<BOOL:${GMA_HAVE_OPENMP}>
                                           GMA_CLI_ONEDNN=$<BOOL:${GMA_HAVE_ONEDNN}>)
