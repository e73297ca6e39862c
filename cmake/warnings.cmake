# The only place for compiler flags. -ffp-contract=off: the CPU op must round like the kernels do.
function(specfast_target_flags target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  else()
    set(scope PRIVATE)
  endif()
  target_compile_options(${target} ${scope}
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --fmad=false -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas,-fno-strict-aliasing
      # Bodies are templates over a Team; each Team lives on one side, host or device.
      -diag-suppress=20011,20014>)
  if(SPECFAST_SANITIZE)
    target_compile_options(${target} ${scope}
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPECFAST_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -Og>)
    target_link_options(${target} ${scope} -fsanitize=${SPECFAST_SANITIZE})
  endif()
endfunction()
