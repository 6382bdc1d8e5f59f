// Products by cuBLASLt. A row-major c[m, n] is its column-major matrix [n, m]: b is its first
// operand, a its second.
//
// An algorithm takes no workspace and does not cut k: each element of c is then summed in one
// place.
#include "kernels/cuda/cublaslt.h"

#if __has_include(<cublasLt.h>)
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include <cublasLt.h>
#include <dlfcn.h>

#include "kernels/base/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/libraries.h"

namespace tailrace::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr uint32_t kRowAlignment = 16;  // bytes; product_table.cc looks at them

// The functions that are called, by the types of the header.
struct CublasLtCalls {
#define TR_CUBLASLT_CALLS(call)                                                                    \
  call(cublasLtGetVersion) call(cublasLtCreate) call(cublasLtMatmul)                               \
      call(cublasLtMatmulDescCreate) call(cublasLtMatmulDescDestroy)                               \
          call(cublasLtMatmulDescSetAttribute) call(cublasLtMatrixLayoutCreate)                    \
              call(cublasLtMatrixLayoutDestroy) call(cublasLtMatmulPreferenceCreate)               \
                  call(cublasLtMatmulPreferenceDestroy) call(cublasLtMatmulPreferenceSetAttribute) \
                      call(cublasLtMatmulAlgoGetHeuristic) call(cublasLtMatmulAlgoCheck)           \
                          call(cublasLtMatmulAlgoConfigGetAttribute)
#define TR_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  TR_CUBLASLT_CALLS(TR_CUBLASLT_MEMBER)
#undef TR_CUBLASLT_MEMBER

  // False: one of them lacks.
  bool find(void* library) {
    bool all = true;
#define TR_CUBLASLT_FIND(name)                                       \
  name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  all = all && name != nullptr;
    TR_CUBLASLT_CALLS(TR_CUBLASLT_FIND)
#undef TR_CUBLASLT_FIND
    return all;
  }
#undef TR_CUBLASLT_CALLS
};

// Its own descriptions of a product, which are freed with it.
class CublasLtProduct {
 public:
  CublasLtProduct(const CublasLtCalls& calls, const LibraryProduct& p) : calls_(calls) {
    const bool turns_first = p.kind == ProductKind::kForward;
    const bool turns_second = p.kind == ProductKind::kGradWeight;
    ok_ = done(calls.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
          set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, turns_first) &&
          set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, turns_second) &&
          layout(first_, CUDA_R_16BF, turns_first, p.n, p.k, p.b_stride) &&
          layout(second_, CUDA_R_16BF, turns_second, p.k, p.m, p.a_stride) &&
          layout(result_, p.c_is_float ? CUDA_R_32F : CUDA_R_16BF, false, p.n, p.m, p.c_stride);
  }
  ~CublasLtProduct() {
    for (cublasLtMatrixLayout_t layout : {first_, second_, result_})
      if (layout != nullptr) (void)calls_.cublasLtMatrixLayoutDestroy(layout);
    if (operation_ != nullptr) (void)calls_.cublasLtMatmulDescDestroy(operation_);
  }
  CublasLtProduct(const CublasLtProduct&) = delete;

  bool ok() const { return ok_; }
  cublasLtMatmulDesc_t operation() const { return operation_; }
  cublasLtMatrixLayout_t first() const { return first_; }
  cublasLtMatrixLayout_t second() const { return second_; }
  cublasLtMatrixLayout_t result() const { return result_; }

 private:
  static bool done(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }
  bool set_transposed(cublasLtMatmulDescAttributes_t attribute, bool turned) const {
    const int32_t value = turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    return done(
        calls_.cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  }
  // The layout of a matrix that is [rows, cols] once it is turned.
  bool layout(cublasLtMatrixLayout_t& layout, cudaDataType type, bool turned, int64_t rows,
              int64_t cols, int64_t stride) const {
    if (turned) std::swap(rows, cols);
    return done(calls_.cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                                  static_cast<uint64_t>(cols), stride));
  }

  const CublasLtCalls& calls_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  bool ok_ = false;
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(LibraryAlgorithm) &&
              std::is_trivially_copyable_v<cublasLtMatmulAlgo_t>);
cublasLtMatmulAlgo_t native_algorithm(const LibraryAlgorithm& algorithm) {
  cublasLtMatmulAlgo_t native;
  std::copy(algorithm.data.begin(), algorithm.data.end(), native.data);
  return native;
}

class CublasLt final : public LibraryProducts {
 public:
  explicit CublasLt(const CublasLtCalls& calls) : calls_(calls) {}

  std::string version() const override {
    return "cublasLt " + std::to_string(calls_.cublasLtGetVersion());
  }

  std::vector<LibraryAlgorithm> choose(const Stream& stream, const LibraryProduct& p) override {
    const cublasLtHandle_t handle = handle_of(stream);
    const CublasLtProduct native(calls_, p);
    cublasLtMatmulPreference_t preference = nullptr;
    if (handle == nullptr || !native.ok() ||
        calls_.cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
      return {};
    const uint64_t workspace = 0;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    bool ok = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      ok = ok && prefer(preference, attribute, kRowAlignment);
    cublasLtMatmulHeuristicResult_t results[kCandidates];
    int count = 0;
    ok = ok && calls_.cublasLtMatmulAlgoGetHeuristic(handle, native.operation(), native.first(),
                                                     native.second(), native.result(),
                                                     native.result(), preference, kCandidates,
                                                     results, &count) == CUBLAS_STATUS_SUCCESS;
    (void)calls_.cublasLtMatmulPreferenceDestroy(preference);
    std::vector<LibraryAlgorithm> found;
    for (int i = 0; ok && i < count; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS || results[i].workspaceSize != 0 ||
          !sums_in_one_place(results[i].algo))
        continue;
      LibraryAlgorithm& algorithm = found.emplace_back();
      std::copy_n(results[i].algo.data, algorithm.data.size(), algorithm.data.begin());
    }
    return found;
  }

  bool check(const Stream& stream, const LibraryProduct& p,
             const LibraryAlgorithm& algorithm) override {
    const cublasLtHandle_t handle = handle_of(stream);
    const CublasLtProduct native(calls_, p);
    if (handle == nullptr || !native.ok()) return false;
    const cublasLtMatmulAlgo_t algo = native_algorithm(algorithm);
    cublasLtMatmulHeuristicResult_t result;
    return calls_.cublasLtMatmulAlgoCheck(handle, native.operation(), native.first(),
                                          native.second(), native.result(), native.result(), &algo,
                                          &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize == 0;
  }

  bool multiply(const Stream& stream, const LibraryProduct& p,
                const LibraryAlgorithm& algorithm) override {
    const cublasLtHandle_t handle = handle_of(stream);
    const CublasLtProduct native(calls_, p);
    if (handle == nullptr || !native.ok()) return false;
    const cublasLtMatmulAlgo_t algo = native_algorithm(algorithm);
    const float one = 1, beta = p.add ? 1.0f : 0.0f;
    return calls_.cublasLtMatmul(handle, native.operation(), &one, p.b, native.first(), p.a,
                                 native.second(), &beta, p.c, native.result(), p.c, native.result(),
                                 &algo, /*workspace=*/nullptr,
                                 /*workspaceSizeInBytes=*/0,
                                 static_cast<cudaStream_t>(stream.native)) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  template <class T>
  bool prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
              const T& value) const {
    return calls_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                       sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  }
  template <class T>
  bool has_config(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                  T& value) const {
    size_t written = 0;
    return calls_.cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value),
                                                       &written) == CUBLAS_STATUS_SUCCESS;
  }
  bool sums_in_one_place(const cublasLtMatmulAlgo_t& algo) const {
    int32_t pieces = 0;
    uint32_t scheme = 0;
    return has_config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, pieces) && pieces <= 1 &&
           pieces >= 0 && has_config(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme) &&
           scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
  }

  // One a device, kept. Makes the stream's device the thread's, as a launch does.
  cublasLtHandle_t handle_of(const Stream& stream) {
    cuda_check(cudaSetDevice(stream.device.index));
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = handles_.try_emplace(stream.device.index, nullptr);
    if (is_new && calls_.cublasLtCreate(&found->second) != CUBLAS_STATUS_SUCCESS)
      found->second = nullptr;
    return found->second;
  }

  const CublasLtCalls calls_;
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
};

}  // namespace

LibraryProducts* load_cublaslt() {
  static const std::unique_ptr<CublasLt> library = []() -> std::unique_ptr<CublasLt> {
    void* const loaded = load_library("cublasLt");
    CublasLtCalls calls;
    // The values of its enums are a major version's.
    if (loaded == nullptr || !calls.find(loaded) ||
        calls.cublasLtGetVersion() / 10000 != CUBLAS_VER_MAJOR)
      return nullptr;
    return std::make_unique<CublasLt>(calls);
  }();
  return library.get();
}

}  // namespace tailrace::cuda

#else

namespace tailrace::cuda {
LibraryProducts* load_cublaslt() { return nullptr; }
}  // namespace tailrace::cuda

#endif
