# _ops.so on torch's stable ABI. Python says where torch is; find_package(Torch) would insist on a
# full CUDA toolkit. `-I` sees the environment from inside pip's build isolation.
find_package(Python COMPONENTS Interpreter REQUIRED)
set(find_torch "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('torch').origin).parent)")
execute_process(COMMAND ${Python_EXECUTABLE} -c "${find_torch}"
                OUTPUT_VARIABLE SPECFAST_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SPECFAST_TORCH_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -I -c "${find_torch}"
                  OUTPUT_VARIABLE SPECFAST_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT SPECFAST_TORCH_DIR)
  message(FATAL_ERROR "specfast needs torch >= 2.10 to build: run `pip install torch` first.")
endif()

file(GLOB SPECFAST_TORCH_SOURCES CONFIGURE_DEPENDS csrc/torch/*.cpp)
add_library(_ops MODULE ${SPECFAST_TORCH_SOURCES})
set_target_properties(_ops PROPERTIES PREFIX "" OUTPUT_NAME "_ops" CXX_VISIBILITY_PRESET hidden)
specfast_target_flags(_ops)
target_include_directories(_ops SYSTEM PRIVATE ${SPECFAST_TORCH_DIR}/include)
target_compile_definitions(_ops PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
# --no-as-needed keeps the need of libtorch.so, through which the weak stream symbol is found.
target_link_directories(_ops PRIVATE ${SPECFAST_TORCH_DIR}/lib)
target_link_libraries(_ops PRIVATE specfast_core -Wl,--no-as-needed torch -Wl,--as-needed torch_cpu)
install(TARGETS _ops LIBRARY DESTINATION specfast)
