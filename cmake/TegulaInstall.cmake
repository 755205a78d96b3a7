# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` gives: headers, both libraries, the program, and what find_package and pkg-config read.
include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/tegula")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tegula" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS tegula tegula_static EXPORT tegulaTargets)
install(EXPORT tegulaTargets NAMESPACE tegula:: DESTINATION "${package_folder}")
if(TARGET tegula_cli)
  install(TARGETS tegula_cli)
  # What `tegula verify` reads.
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/tests/cases/table" "${PROJECT_SOURCE_DIR}/tests/cases/refusals"
          DESTINATION "${CMAKE_INSTALL_DATADIR}/tegula/cases")
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Where `make pack` has made one.
install(FILES "${PROJECT_BINARY_DIR}/sm_90a.tegpack" DESTINATION "${CMAKE_INSTALL_DATADIR}/tegula" OPTIONAL)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/tegulaConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/cmake/tegulaConfig.cmake" INSTALL_DESTINATION "${package_folder}")
# Before 1.0 a minor version may change the C++ layer.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/tegulaConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/tegulaConfig.cmake"
              "${PROJECT_BINARY_DIR}/cmake/tegulaConfigVersion.cmake" DESTINATION "${package_folder}")

# tegula.pc finds the prefix from its own place, so that the tree may be moved and `cmake --install --prefix` be used.
set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
foreach(kind LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(pc_${kind} "${CMAKE_INSTALL_${kind}}")
  else()
    set(pc_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
if(IS_ABSOLUTE "${pc_folder}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/${pc_folder}" "/")
  string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${up}")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tegula.pc.in" "${PROJECT_BINARY_DIR}/cmake/tegula.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cmake/tegula.pc" DESTINATION "${pc_folder}")
