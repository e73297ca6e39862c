# _ops.so on torch's stable ABI. Python says where torch is; find_package(Torch) would insist on a
# full CUDA toolkit. `-I` sees the environment from inside pip's build isolation.
find_package(Python COMPONENTS Interpreter REQUIRED)
set(find_torch "\
import importlib.metadata, importlib.util, pathlib
root = pathlib.Path(importlib.util.find_spec('torch').origin).parent
print(root, importlib.metadata.version('torch').partition('+')[0], sep=';')")
foreach(isolation "" "-I")
  if(NOT SPECFAST_TORCH_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} ${isolation} -c "${find_torch}"
                    OUTPUT_VARIABLE SPECFAST_TORCH_FOUND
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endforeach()
if(NOT SPECFAST_TORCH_FOUND)
  message(FATAL_ERROR "specfast needs torch >= 2.10 to build: run `pip install torch` first.")
endif()
list(GET SPECFAST_TORCH_FOUND 0 SPECFAST_TORCH_DIR)
list(GET SPECFAST_TORCH_FOUND 1 torch_version)
if(torch_version VERSION_LESS 2.10)
  message(FATAL_ERROR "specfast needs torch >= 2.10 to build, and found ${torch_version}: "
                      "run `pip install -U torch` first.")
endif()

file(GLOB SPECFAST_TORCH_SOURCES CONFIGURE_DEPENDS csrc/torch/*.cpp)
add_library(_ops MODULE ${SPECFAST_TORCH_SOURCES})
set_target_properties(_ops PROPERTIES PREFIX "" OUTPUT_NAME "_ops" CXX_VISIBILITY_PRESET hidden)
specfast_target_flags(_ops)
target_include_directories(_ops SYSTEM PRIVATE ${SPECFAST_TORCH_DIR}/include)
target_compile_definitions(_ops PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
set(SPECFAST_ARCHITECTURES "")
if(SPECFAST_HAS_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " SPECFAST_ARCHITECTURES)
endif()
set_source_files_properties(csrc/torch/module.cpp PROPERTIES COMPILE_DEFINITIONS
                            "SPECFAST_CUDA_ARCHITECTURES=\"${SPECFAST_ARCHITECTURES}\"")
# --no-as-needed keeps the need of libtorch.so, through which the weak stream symbol is found.
target_link_directories(_ops PRIVATE ${SPECFAST_TORCH_DIR}/lib)
target_link_libraries(_ops PRIVATE specfast_core -Wl,--no-as-needed torch -Wl,--as-needed torch_cpu)
install(TARGETS _ops LIBRARY DESTINATION specfast)
