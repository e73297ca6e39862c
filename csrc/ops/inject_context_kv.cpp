#include "ops/inject_context_kv.h"

namespace specfast {
namespace {

template <class T>
void inject_all(const InjectContextKvParams& p) {
  for (int32_t b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    ContextInjection<T>{p, b}.run(team);
  }
}

}  // namespace

void inject_context_kv_cpu(const InjectContextKvParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return inject_all<float>(p);
    case FloatType::kBFloat16:
      return inject_all<BFloat16>(p);
    case FloatType::kFloat16:
      return inject_all<Float16>(p);
  }
}

}  // namespace specfast
