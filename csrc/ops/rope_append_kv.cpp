#include "ops/rope_append_kv.h"

namespace specfast {
namespace {

template <class T>
void store_all(const RopeAppendKvParams& p) {
  SerialTeam team;
  RotatedRows<T>{p}.run(team);
}

}  // namespace

void rope_append_kv_cpu(const RopeAppendKvParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return store_all<float>(p);
    case FloatType::kBFloat16:
      return store_all<BFloat16>(p);
    case FloatType::kFloat16:
      return store_all<Float16>(p);
  }
}

}  // namespace specfast
