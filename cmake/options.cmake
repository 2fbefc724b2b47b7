# Warnings, sanitizers and the helper that declares one library per source folder.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports overlapping copies inside std::string operator+ (its bug 105651) and std::optional members.
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
endif()
# Kernels and codecs get -O3 (CMakeLists.txt); for everything else it only makes builds slower.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(TESSERA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# Instruction-set sources carry the set as a file suffix and are reached only through run-time dispatch.
set(TESSERA_ISA_avx2 -mavx2 -mfma -mf16c)
set(TESSERA_ISA_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi)
# g++ 12 takes the "undefined" operands inside its own AVX-512 headers for uninitialised variables (GCC bug 105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TESSERA_ISA_avx512 -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
set(TESSERA_ISA_avx512bf16 ${TESSERA_ISA_avx512} -mavx512bf16)
set(TESSERA_ISA_amx ${TESSERA_ISA_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)

# tessera_library(folder deps...): src/<folder>/**.cpp as libtessera_<folder with _>.
function(tessera_library folder)
  string(REPLACE "/" "_" name tessera_${folder})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${ARGN})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARGN})
  foreach(source ${sources})
    # The match with the group comes last: each MATCHES overwrites CMAKE_MATCH_1.
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND source MATCHES "_(avx2|avx512|avx512bf16|amx)\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${TESSERA_ISA_${CMAKE_MATCH_1}}")
    endif()
  endforeach()
endfunction()
