# The CUDA backend: a library that the program loads at run time, so that the same package starts
# without driver or card. Built where nvcc is found: TESSERA_NVCC, $CUDA_HOME, PATH, or what
# `scripts/bootstrap.sh --cuda` has put into .cuda. Sources are compiled by rules of our own: the
# toolkit from PyPI is a compiler and headers, not what CMake's CUDA language expects.
set(TESSERA_CUDA AUTO CACHE STRING "CUDA backend: AUTO (where there are a card and nvcc), ON or OFF")
if(TESSERA_CUDA STREQUAL "OFF")
  return()
endif()
# What to compile for: the cards of this machine, or all that the project knows.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
  OUTPUT_VARIABLE cards RESULT_VARIABLE no_card ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(own_archs "80;90a;120f")
if(no_card EQUAL 0 AND cards)
  set(own_archs "")
  string(REPLACE "\n" ";" cards "${cards}")
  foreach(card ${cards})
    string(REPLACE "." "" card ${card})
    if(card STREQUAL "90")
      set(card 90a)
    elseif(card MATCHES "^12[0-9]$")
      set(card 120f)
    endif()
    list(APPEND own_archs ${card})
  endforeach()
  list(REMOVE_DUPLICATES own_archs)
elseif(TESSERA_CUDA STREQUAL "AUTO")
  return()
endif()
set(TESSERA_CUDA_ARCHS "${own_archs}" CACHE STRING "Compute capabilities; the last plain one also leaves PTX")
find_program(TESSERA_NVCC nvcc
  HINTS $ENV{CUDA_HOME}/bin ${PROJECT_SOURCE_DIR}/.cuda/nvidia/cu13/bin /usr/local/cuda/bin)
if(NOT TESSERA_NVCC)
  if(TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "nvcc not found: run scripts/bootstrap.sh --cuda, or set TESSERA_NVCC")
  endif()
  return()
endif()
get_filename_component(cuda_home ${TESSERA_NVCC} DIRECTORY)
get_filename_component(cuda_home ${cuda_home} DIRECTORY)
find_library(TESSERA_CUDART cudart_static HINTS ${cuda_home}/lib64 ${cuda_home}/lib REQUIRED NO_DEFAULT_PATH)

set(cuda_flags -std=c++20 --expt-relaxed-constexpr -O3 -lineinfo -Xcompiler=-fPIC,-Wall,-Wextra
  -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_BINARY_DIR}/generated)
set(cuda_ptx "")
foreach(arch ${TESSERA_CUDA_ARCHS})
  list(APPEND cuda_flags -gencode=arch=compute_${arch},code=sm_${arch})
  if(arch MATCHES "^[0-9]+$")
    set(cuda_ptx ${arch})
  endif()
endforeach()
if(cuda_ptx)
  list(APPEND cuda_flags -gencode=arch=compute_${cuda_ptx},code=compute_${cuda_ptx})
endif()

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backends/cuda/*.cu)
set(cuda_objects "")
foreach(source ${cuda_sources})
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src/backends/cuda ${source})
  string(REPLACE "/" "_" name ${name})
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${TESSERA_NVCC} ${cuda_flags} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source} ${interface_hash} DEPFILE ${object}.d
    COMMENT "Building CUDA object ${name}.o" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
add_library(tessera_cuda SHARED ${cuda_objects})
set_target_properties(tessera_cuda PROPERTIES LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(tessera_cuda PRIVATE tessera_ops ${TESSERA_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
install(TARGETS tessera_cuda LIBRARY DESTINATION lib)
