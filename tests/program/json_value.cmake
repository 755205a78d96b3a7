# SPDX-License-Identifier: Apache-2.0
# Parses a whole JSON document and prints one value of it: cmake -DFILE=... "-DKEYS=a;0;b" -P json_value.cmake
# With -DOFFSET and -DLENGTH: a part of the file.
if(NOT DEFINED OFFSET)
  set(OFFSET 0)
endif()
if(DEFINED LENGTH)
  file(READ "${FILE}" document OFFSET ${OFFSET} LIMIT ${LENGTH})
else()
  file(READ "${FILE}" document OFFSET ${OFFSET})
endif()
string(JSON value ERROR_VARIABLE error GET "${document}" ${KEYS})
if(error)
  message(FATAL_ERROR "${FILE}: ${error}")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${value}")
