# CPU tiers: which ones this build contains, with which flags, and how a kernel body becomes one object per tier.
#
# A kernel is ONE file, src/kernels/<kernel>.c, compiled once per tier with
#   -DGMAI_ISA=<tier> -include src/simd/<tier>.h  and the tier's -m flags.
# src/kernels/<kernel>_<tier>.c, where it exists, replaces the shared body for that tier only.
# GMAI_HAVE_<tier> is defined for everything that chooses between tiers. A tier without src/simd/<tier>.h is left out.

set(GMA_ALL_TIERS scalar neon avx2 avx512 amx)

set(GMA_ISA_FLAGS_scalar "")
set(GMA_ISA_FLAGS_neon "")
set(GMA_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(GMA_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)

# For tests only: the tiers in GMA_EMULATED take their vocabulary from tests/emulation, in plain C, and are compiled for
# the tier below, so that they run on CPUs without them.
option(GMA_EMULATE "Emulate AVX-512 and AMX (tests only: slow, and cannot be installed)" OFF)
set(GMA_EMULATED "")
set(GMA_ISA_FLAGS_amx ${GMA_ISA_FLAGS_avx512} -mavx512bf16 -mamx-tile -mamx-bf16)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  option(GMA_AVX2 "Build the AVX2 tier" ON)
  option(GMA_AVX512 "Build the AVX-512 tier" ON)
  include(CMakeDependentOption)
  cmake_dependent_option(GMA_AMX "Build the AMX tier" ON GMA_AVX512 OFF)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  option(GMA_NEON "Build the NEON tier" ON)
endif()

if(GMA_EMULATE)
  if(NOT GMA_AVX512 OR NOT GMA_TESTS OR GMA_LM)
    message(FATAL_ERROR "GMA_EMULATE is for the tests of libgma on x86-64: it needs GMA_TESTS=ON, GMA_AVX512=ON, GMA_LM=OFF")
  endif()
  set(GMA_EMULATED avx512)
  if(GMA_AMX)
    list(APPEND GMA_EMULATED amx)
  endif()
  foreach(tier IN LISTS GMA_EMULATED)
    set(GMA_ISA_FLAGS_${tier} "")
    if(GMA_AVX2)
      set(GMA_ISA_FLAGS_${tier} ${GMA_ISA_FLAGS_avx2})
    endif()
  endforeach()
  message(STATUS "Emulated tiers, for tests only: ${GMA_EMULATED}")
endif()

set(GMA_TIERS "")
foreach(tier IN LISTS GMA_ALL_TIERS)
  string(TOUPPER ${tier} upper)
  if((tier STREQUAL "scalar" OR GMA_${upper}) AND EXISTS ${PROJECT_SOURCE_DIR}/src/simd/${tier}.h)
    list(APPEND GMA_TIERS ${tier})
  endif()
endforeach()

set(GMA_TIER_DEFINITIONS "")
foreach(tier IN LISTS GMA_TIERS)
  list(APPEND GMA_TIER_DEFINITIONS GMAI_HAVE_${tier})
endforeach()
if(GMA_EMULATE)
  list(APPEND GMA_TIER_DEFINITIONS GMAI_EMULATE)
endif()

# gma_add_kernels(<name> <folder> <out>): objects of every *.c in <folder>, once per tier; <out> gets the object list.
function(gma_add_kernels name folder out)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.c)
  list(JOIN GMA_ALL_TIERS "|" any_tier)
  set(shared ${files})
  list(FILTER shared EXCLUDE REGEX "_(${any_tier})\\.c$")
  set(objects "")
  foreach(tier IN LISTS GMA_TIERS)
    set(sources "")
    foreach(file IN LISTS shared)
      string(REGEX REPLACE "\\.c$" "_${tier}.c" tuned ${file})
      if(NOT tuned IN_LIST files)
        list(APPEND sources ${file})
      endif()
    endforeach()
    set(own ${files})
    list(FILTER own INCLUDE REGEX "_${tier}\\.c$")
    list(APPEND sources ${own})
    # AMX multiplies matrices: a folder without a body of its own has nothing to gain from it.
    if(tier STREQUAL "amx" AND NOT own)
      set(sources "")
    endif()
    set(vocabulary ${PROJECT_SOURCE_DIR}/src/simd/${tier}.h)
    if(tier IN_LIST GMA_EMULATED)
      set(vocabulary ${PROJECT_SOURCE_DIR}/tests/emulation/${tier}.h)
    endif()
    if(sources)
      set(target ${name}_${tier})
      add_library(${target} OBJECT ${sources})
      gma_target_defaults(${target})
      # A kernel without optimisation is too slow to test with, so even a Debug build optimises it.
      # The two -fno- flags give up errno and exception flags, which nobody reads here, and change no value (NaN and Inf
      # behave as ever); without them the compiler vectorises neither sqrt nor a comparison.
      target_compile_options(${target} PRIVATE $<$<CONFIG:Debug>:-O2> -fno-math-errno -fno-trapping-math
                             ${GMA_ISA_FLAGS_${tier}}
                             "SHELL:-include \"${vocabulary}\"")
      target_compile_definitions(${target} PRIVATE GMAI_ISA=${tier} ${GMA_TIER_DEFINITIONS})
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
