# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE_DIR=<root> -D OUTPUT=<file.cc> -P EmbedDeviceText.cmake: the files of device/ as C++ string literals.
file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}" LIST_DIRECTORIES false "${SOURCE_DIR}/device/*.hpp")
list(SORT files)
set(constants "")
set(entries "")
set(index 0)
foreach(name IN LISTS files)
  file(READ "${SOURCE_DIR}/${name}" text)
  string(APPEND constants "constexpr char kText${index}[] = R\"tegula~(${text})tegula~\";\n")
  string(APPEND entries "    {\"${name}\", kText${index}, sizeof kText${index} - 1},\n")
  math(EXPR index "${index} + 1")
endforeach()
if(index EQUAL 0)
  set(table "std::span<const DeviceText> device_texts() { return {}; }")
else()
  set(table "constexpr DeviceText kTexts[] = {\n${entries}};\n\nstd::span<const DeviceText> device_texts() { return kTexts; }")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Written by cmake/EmbedDeviceText.cmake.
#include "src/cuda/jit/device_text.hpp"

namespace tegula::cuda {

@constants@
@table@

}  // namespace tegula::cuda
]])
