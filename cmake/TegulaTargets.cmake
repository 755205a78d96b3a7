# SPDX-License-Identifier: Apache-2.0
# Options that every target of ours shares, and the globbing that saves editing CMake for each new file.

# Warnings, dialect, include paths: for every target, ISA objects included.
add_library(tegula_options INTERFACE)
target_compile_features(tegula_options INTERFACE cxx_std_20)
target_compile_options(tegula_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-Wall;-Wextra;-Wshadow;-ffp-contract=off>
  $<$<COMPILE_LANG_AND_ID:C,GNU,Clang>:-Wall;-Wextra;-Wshadow;-ffp-contract=off>)
# Constant folding inside libstdc++'s operator+(const char*, string&&) (GCC PR 105329 and 105651, fixed in 13).
target_compile_options(tegula_options INTERFACE
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
target_include_directories(tegula_options INTERFACE
  "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")

# Sanitizers: for every target but the ISA objects, whose flags are the same in every preset.
add_library(tegula_sanitizers INTERFACE)
if(TEGULA_SANITIZE)
  set(_flags -fsanitize=${TEGULA_SANITIZE} -fno-omit-frame-pointer)
  if(TEGULA_SANITIZE MATCHES "undefined")
    list(APPEND _flags -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(tegula_sanitizers INTERFACE ${_flags})
  target_link_options(tegula_sanitizers INTERFACE -fsanitize=${TEGULA_SANITIZE})
endif()

# tegula_glob(<variable> <pattern>...): sorted sources of the calling folder; empty when nothing matches.
function(tegula_glob variable)
  file(GLOB files CONFIGURE_DEPENDS LIST_DIRECTORIES false ${ARGN})
  set(${variable} "${files}" PARENT_SCOPE)
endfunction()

# tegula_setup(<target>): C++20 without extensions, hidden symbols, warnings, sanitizers.
function(tegula_setup target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF C_STANDARD 11 C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tegula_options> $<BUILD_INTERFACE:tegula_sanitizers>)
endfunction()

# tegula_support(<target> <folder glob> LINK <libraries>): a static library used by tools and tests only.
# Skipped, with no target made, while the folder has no source.
function(tegula_support target pattern)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  tegula_glob(sources ${pattern})
  if(NOT sources)
    return()
  endif()
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${sources})
  tegula_setup(${target})
  tegula_link(${target} PUBLIC ${arg_LINK})
endfunction()

# tegula_link(<target> <scope> <libraries>...): links those targets that exist.
function(tegula_link target scope)
  foreach(library IN LISTS ARGN)
    if(TARGET ${library})
      target_link_libraries(${target} ${scope} ${library})
    endif()
  endforeach()
endfunction()
