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

# gma_optional(<NAME> <pkg-config module> <what for>): AUTO, ON or OFF in GMA_<NAME>; sets GMA_HAVE_<NAME>.
macro(gma_optional name module purpose)
  set(GMA_HAVE_${name} OFF)
  if(NOT GMA_${name} STREQUAL "OFF")
    pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
    set(GMA_HAVE_${name} ${${name}_FOUND})
    if(NOT GMA_HAVE_${name} AND GMA_${name} STREQUAL "ON")
      message(FATAL_ERROR "${module} was not found; configure with -DGMA_${name}=OFF to build without ${purpose}")
    endif()
  endif()
endmacro()
gma_optional(PCRE2 libpcre2-8 "byte-pair encoding")
gma_optional(UTF8PROC libutf8proc "composing Unicode")

# By plain name for those who link the installed static library: their paths need not be ours.
set(GMA_LM_LIBRARIES $<BUILD_INTERFACE:PkgConfig::JANSSON> $<INSTALL_INTERFACE:jansson>)
gma_sources(gma_lm_files layers models train data io report inspect theory)
gma_add_kernels(gma_lm_kernels ${PROJECT_SOURCE_DIR}/src/layers/kernels gma_lm_kernel_objects)
# The page of `gma inspect --out` is a file of its own that the library carries.
set(gma_report_template ${PROJECT_BINARY_DIR}/report_template.c)
add_custom_command(OUTPUT ${gma_report_template}
  COMMAND ${CMAKE_COMMAND} -DIN=${PROJECT_SOURCE_DIR}/src/report/template.html -DOUT=${gma_report_template}
          -DNAME=gmal_report_template -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
  DEPENDS ${PROJECT_SOURCE_DIR}/src/report/template.html ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
add_library(gma_lm_objects OBJECT ${gma_lm_files} ${gma_report_template})
gma_target_defaults(gma_lm_objects)
target_compile_definitions(gma_lm_objects PRIVATE ${GMA_TIER_DEFINITIONS})
target_include_directories(gma_lm_objects PRIVATE ${JANSSON_INCLUDE_DIRS})
if(GMA_HAVE_ONEDNN)
  target_compile_definitions(gma_lm_objects PRIVATE GMAL_HAVE_ONEDNN)
  target_include_directories(gma_lm_objects SYSTEM PRIVATE ${DNNL_INCLUDE_DIR})
  list(APPEND GMA_LM_LIBRARIES $<BUILD_INTERFACE:${DNNL_LIBRARY}> $<INSTALL_INTERFACE:dnnl>)
endif()
set(GMA_PC_LM_REQUIRES jansson)
if(GMA_HAVE_PCRE2)
  target_compile_definitions(gma_lm_objects PRIVATE GMAL_HAVE_PCRE2)
  target_include_directories(gma_lm_objects SYSTEM PRIVATE ${PCRE2_INCLUDE_DIRS})
  list(APPEND GMA_LM_LIBRARIES $<BUILD_INTERFACE:PkgConfig::PCRE2> $<INSTALL_INTERFACE:pcre2-8>)
  string(APPEND GMA_PC_LM_REQUIRES ", libpcre2-8")
endif()
if(GMA_HAVE_UTF8PROC)
  target_compile_definitions(gma_lm_objects PRIVATE GMAL_HAVE_UTF8PROC)
  target_include_directories(gma_lm_objects SYSTEM PRIVATE ${UTF8PROC_INCLUDE_DIRS})
  list(APPEND GMA_LM_LIBRARIES $<BUILD_INTERFACE:PkgConfig::UTF8PROC> $<INSTALL_INTERFACE:utf8proc>)
  string(APPEND GMA_PC_LM_REQUIRES ", libutf8proc")
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
                                           GMA_CLI_ONEDNN=$<BOOL:${GMA_HAVE_ONEDNN}>
                                           GMA_CLI_PCRE2=$<BOOL:${GMA_HAVE_PCRE2}>
                                           GMA_CLI_UTF8PROC=$<BOOL:${GMA_HAVE_UTF8PROC}>)
