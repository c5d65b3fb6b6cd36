# How every target of simgrad is compiled, in one place.
#
# No contraction and no fast-math anywhere: docs/numerics.md, "Operations". A flag that changes a bit
# belongs here or nowhere.
find_package(Threads REQUIRED)

add_library(simgrad_options INTERFACE)
target_compile_features(simgrad_options INTERFACE cxx_std_20)
target_compile_options(simgrad_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -Werror
  -ffp-contract=off -fno-fast-math -fno-math-errno -fno-trapping-math)
# GCC 12's flow-based warnings give false alarms inside its own std::string and std::vector at -O3 (for
# example its bug 105329). They stay on for other compilers.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(simgrad_options INTERFACE -Wno-restrict -Wno-array-bounds
    -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread)
endif()
target_include_directories(simgrad_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(simgrad_options INTERFACE Threads::Threads)
if(SIMGRAD_SANITIZE)
  target_compile_options(simgrad_options INTERFACE -fsanitize=${SIMGRAD_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(simgrad_options INTERFACE -fsanitize=${SIMGRAD_SANITIZE})
  # Long random series are shorter here: ten times slower, they look for other things.
  target_compile_definitions(simgrad_options INTERFACE SIMGRAD_SANITIZED)
endif()

# simgrad_library(NAME SOURCES ... [LIBS ...]): a static library under the house options.
function(simgrad_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC simgrad_options ${ARG_LIBS})
endfunction()

# simgrad_test(NAME SOURCES ... [LIBS ...]): a GoogleTest program, registered with CTest under its name.
function(simgrad_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE simgrad_options ${ARG_LIBS} simgrad_source_tree GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS "${ARG_LABELS}")
endfunction()
