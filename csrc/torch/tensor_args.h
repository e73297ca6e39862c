#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/types.h"

// Null in a CPU build of torch: one library serves both.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

struct CUstream_st;

namespace specfast {

// Where an op runs: one function checks its arguments for both.
enum class Device { kCpu, kCuda };

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

class TensorArg;

// "OP: sentence" becomes a RuntimeError; torch's own check would begin it with file and line.
template <class... Parts>
[[noreturn]] void refuse(const char* op, const Parts&... parts) {
  std::ostringstream sentence;
  sentence << op << ": ";
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

// The argument checks of one call. Sizes are written as symbols; a symbol means the same number in
// every tensor of the call, so the checks read like the contract in the docstring:
//
//   ArgChecks args("accept_tree", draft_tokens);
//   args(draft_tokens, "draft_tokens").dtype(kIds).shape({"B", "N"}).rows();
//   args(prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous();
//   int64_t batch = args["B"];
class ArgChecks {
 public:
  // The device of `first` is the device of the call.
  ArgChecks(const char* op, const Tensor& first) : op_(op), first_(first) {}

  TensorArg operator()(const Tensor& tensor, const char* name);
  TensorArg operator()(const OptionalTensor& tensor, const char* name);

  // Fixes a symbol's value before any tensor shows it.
  void size(const std::string& symbol, int64_t value) { sizes_[symbol] = value; }
  // A symbol's value; it must have been shown by a tensor or fixed by `size`.
  int64_t operator[](const std::string& symbol) const {
    auto found = sizes_.find(symbol);
    if (found == sizes_.end()) refuse(op_, "size ", symbol, " is not known yet");
    return found->second;
  }
  void require(bool condition, const std::string& sentence) const {
    if (!condition) refuse(op_, sentence);
  }
  // "expected ARGUMENT ..., got VALUE" for a number.
  void require_range(const char* name, int64_t value, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return;
    refuse(op_, "expected ", name, " in [", low, ", ", high, "], got ", value);
  }
  void require_fraction(const char* name, double value) const {
    if (value >= 0.0 && value <= 1.0) return;
    refuse(op_, "expected ", name, " in [0, 1], got ", value);
  }

 private:
  friend class TensorArg;
  const char* op_;
  const Tensor& first_;
  std::map<std::string, int64_t> sizes_;
};

inline const std::initializer_list<ScalarType> kIds = {ScalarType::Int, ScalarType::Long};
inline const std::initializer_list<ScalarType> kInt32 = {ScalarType::Int};
inline const std::initializer_list<ScalarType> kInt64 = {ScalarType::Long};
inline const std::initializer_list<ScalarType> kBytes = {ScalarType::Byte, ScalarType::Bool};
inline const std::initializer_list<ScalarType> kFloat32 = {ScalarType::Float};
inline const std::initializer_list<ScalarType> kFloat8 = {ScalarType::Float8_e4m3fn};
inline const std::initializer_list<ScalarType> kFloats = {ScalarType::Float, ScalarType::BFloat16,
                                                          ScalarType::Half};

// One tensor argument under check; an absent optional passes every check.
class TensorArg {
 public:
  TensorArg(ArgChecks& args, const Tensor* tensor, const char* name)
      : args_(args), tensor_(tensor), name_(name) {
    if (tensor_ == nullptr) return;
    bool same = tensor_->is_cuda() == args_.first_.is_cuda() &&
                tensor_->get_device_index() == args_.first_.get_device_index();
    if (same) return;
    fail(" on ", device_name(args_.first_), ", got ", device_name(*tensor_));
  }

  TensorArg& dtype(std::initializer_list<ScalarType> allowed) {
    if (tensor_ == nullptr) return *this;
    std::string names;
    for (ScalarType type : allowed) {
      if (type == tensor_->scalar_type()) return *this;
      names += (names.empty() ? "" : " or ") + dtype_name(type);
    }
    fail(" of dtype ", names, ", got ", dtype_name(tensor_->scalar_type()));
  }

  // Symbols bind on first sight; decimal literals are fixed sizes.
  TensorArg& shape(std::initializer_list<const char*> symbols) {
    if (tensor_ == nullptr) return *this;
    bool matches = static_cast<size_t>(tensor_->dim()) == symbols.size();
    std::string expected;
    size_t i = 0;
    for (const char* symbol : symbols) {
      bool literal = symbol[0] >= '0' && symbol[0] <= '9';
      auto known = args_.sizes_.find(symbol);
      bool bound = literal || known != args_.sizes_.end();
      int64_t want = literal ? std::stoll(symbol) : bound ? known->second : 0;
      expected += std::string(i == 0 ? "" : ", ") + symbol;
      if (bound && !literal) expected += "=" + std::to_string(want);
      if (matches && bound && tensor_->size(i) != want) matches = false;
      if (matches && !bound) args_.sizes_[symbol] = tensor_->size(i);
      ++i;
    }
    if (!matches) fail(" of shape [", expected, "], got [", shape_text(), "]");
    return *this;
  }

  // Last dimension dense, any stride before it (2-D: any row stride).
  TensorArg& rows() {
    if (tensor_ == nullptr || tensor_->dim() == 0) return *this;
    int64_t last = tensor_->dim() - 1;
    if (tensor_->stride(last) == 1 || tensor_->size(last) <= 1) return *this;
    fail(" with a dense last dimension, got stride ", tensor_->stride(last));
  }

  // For what is written: rows as above that share no element.
  TensorArg& own_rows() {
    if (tensor_ == nullptr || tensor_->numel() == 0) return *this;
    rows();
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (int64_t i = 0; i + 1 < tensor_->dim(); ++i) {
      if (tensor_->size(i) > 1) dims.push_back({tensor_->stride(i), tensor_->size(i)});
    }
    std::sort(dims.begin(), dims.end());
    int64_t reach = tensor_->size(tensor_->dim() - 1);
    for (auto [stride, size] : dims) {
      if (stride < reach) fail(" with rows of their own, got strides [", strides_text(), "]");
      reach += stride * (size - 1);
    }
    return *this;
  }

  TensorArg& contiguous() {
    if (tensor_ == nullptr) return *this;
    if (tensor_->is_contiguous()) return *this;
    fail(" to be contiguous, got strides [", strides_text(), "]");
  }

  // For elements that are read several at once.
  TensorArg& aligned(int64_t bytes) {
    if (tensor_ == nullptr) return *this;
    int64_t past = reinterpret_cast<uintptr_t>(tensor_->const_data_ptr()) % bytes;
    if (past == 0) return *this;
    fail(" to start at a multiple of ", bytes, " bytes, got an address ", past, " past one");
  }

  template <class T>
  const T* data() const {
    return tensor_ == nullptr ? nullptr : static_cast<const T*>(tensor_->const_data_ptr());
  }
  template <class T>
  T* mutable_data() const {
    return tensor_ == nullptr ? nullptr : static_cast<T*>(tensor_->mutable_data_ptr());
  }
  IdView ids() const { return {data<void>(), is_int64()}; }
  IdSpan mutable_ids() const { return {mutable_data<void>(), is_int64()}; }
  // Elements between rows of a 2-D tensor.
  int64_t row_stride() const { return tensor_ == nullptr ? 0 : tensor_->stride(0); }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    refuse(args_.op_, "expected ", name_, parts...);
  }
  bool is_int64() const { return tensor_ != nullptr && tensor_->scalar_type() == ScalarType::Long; }
  static std::string device_name(const Tensor& tensor) {
    return tensor.is_cuda() ? "cuda:" + std::to_string(tensor.get_device_index()) : "cpu";
  }
  static std::string dtype_name(ScalarType type) {
    switch (type) {
      case ScalarType::Int:
        return "int32";
      case ScalarType::Long:
        return "int64";
      case ScalarType::Byte:
        return "uint8";
      case ScalarType::Bool:
        return "bool";
      case ScalarType::Float:
        return "float32";
      case ScalarType::BFloat16:
        return "bfloat16";
      case ScalarType::Half:
        return "float16";
      case ScalarType::Double:
        return "float64";
      case ScalarType::Short:
        return "int16";
      case ScalarType::Char:
        return "int8";
      case ScalarType::Float8_e4m3fn:
        return "float8_e4m3fn";
      case ScalarType::Float8_e5m2:
        return "float8_e5m2";
      default:
        return "dtype number " + std::to_string(static_cast<int>(type));
    }
  }
  std::string shape_text() const {
    std::string text;
    for (int64_t i = 0; i < tensor_->dim(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(tensor_->size(i));
    }
    return text;
  }
  std::string strides_text() const {
    std::string text;
    for (int64_t i = 0; i < tensor_->dim(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(tensor_->stride(i));
    }
    return text;
  }

  ArgChecks& args_;
  const Tensor* tensor_;
  const char* name_;
};

inline TensorArg ArgChecks::operator()(const Tensor& tensor, const char* name) {
  return TensorArg(*this, &tensor, name);
}
inline TensorArg ArgChecks::operator()(const OptionalTensor& tensor, const char* name) {
  return TensorArg(*this, tensor.has_value() ? &*tensor : nullptr, name);
}

inline FloatType float_type(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16:
      return FloatType::kBFloat16;
    case ScalarType::Half:
      return FloatType::kFloat16;
    default:
      return FloatType::kFloat32;
  }
}

// The current stream of the tensor's device, for the launchers.
inline CUstream_st* current_stream(const Tensor& tensor) {
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    refuse("specfast", "CUDA tensors need a CUDA build of torch");
  }
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<CUstream_st*>(stream);
}

}  // namespace specfast
