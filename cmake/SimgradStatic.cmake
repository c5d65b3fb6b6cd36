# SIMGRAD_STATIC: a server that needs no library of this system beyond libc and libstdc++, for the wheel.
#
# To be included before any package is looked for. Only the link differs: every object is compiled as without it.
# Shared stay libstdc++ and libgcc, which every system has, and prometheus-cpp, of which Debian has no archive.
option(SIMGRAD_STATIC "Link LLVM, gRPC, protobuf, Abseil and OpenSSL as archives" OFF)
if(SIMGRAD_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Protobuf_USE_STATIC_LIBS ON)
  # Archives that need each other stand in any order.
  set(CMAKE_CXX_LINK_EXECUTABLE "<CMAKE_CXX_COMPILER> <FLAGS> <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET> \
-Wl,--start-group <LINK_LIBRARIES> -Wl,--end-group")
endif()

find_package(absl REQUIRED)
if(SIMGRAD_STATIC)
  # The files of CMake's package name the shared libraries; the archives lie beside them.
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER imported INCLUDE REGEX "^absl::")
  foreach(target IN LISTS imported)
    get_target_property(kind ${target} TYPE)
    if(kind STREQUAL "SHARED_LIBRARY")
      get_target_property(library ${target} LOCATION)
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive ${library})
      get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
      foreach(configuration IN LISTS configurations)
        set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} ${archive})
      endforeach()
    endif()
  endforeach()
endif()
