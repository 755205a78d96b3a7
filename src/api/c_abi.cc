// SPDX-License-Identifier: Apache-2.0
// The exported functions: each clears the thread's error text, checks, and hands a resolved call to
// src/plan. Nothing is thrown across this boundary.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/core/float_environment.hpp"
#include "src/core/log.hpp"
#include "src/plan/plan.hpp"

namespace {

using tegula::fail;
using tegula::Status;
using tegula::api::init_struct;
using tegula::api::read_struct;

template <class F>
tegula_status guarded(F&& f) noexcept {
  tegula::clear_error();
  try {
    const tegula_status status = f().code();
    if (status == TEGULA_OK) tegula::clear_error();  // a failure on the way that had an answer
    return status;
  } catch (const std::bad_alloc&) {
    return fail(TEGULA_OUT_OF_MEMORY, "the system has no memory left").code();
  } catch (...) {
    return fail(TEGULA_INTERNAL_ERROR, "an unexpected exception inside the library").code();
  }
}

Status null(const char* name) {
  return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", name);
}

// Copies a structure that the library filled into the caller's, whose struct_size has been read:
// fields that the caller does not know are left out, and those that the library does not know stay
// as they are.
template <class T>
void write_struct(const T& known, T* caller) {
  const size_t size = caller->struct_size;
  std::memcpy(caller, &known, std::min(size, sizeof(T)));
  caller->struct_size = size;
}

template <class T>
Status init(const char* name, T* given, size_t struct_size) {
  return init_struct(name, given, struct_size, tegula::api::kFirstSize<T>);
}

Status read_problem(const tegula_problem* problem, tegula_problem& resolved) {
  tegula_problem given;
  TEGULA_RETURN_IF_ERROR(read_struct("problem", problem, given));
  return tegula::api::resolve_problem(given, resolved);
}

Status prepare_one(const tegula::Plan& plan) {
  const tegula::Plan* const self = &plan;
  return tegula::prepare({&self, 1});
}

Status warm_up(std::span<const tegula_problem* const> problems, const tegula_device& device) {
  const tegula::FloatEnvironment environment;  // scale and softcap are rounded here
  const auto name_problem = [](size_t i, Status status) {
    char text[512];
    std::snprintf(text, sizeof text, "%s", tegula::error_text());
    return fail(status.code(), "problems[%zu]: %s", i, text);
  };
  std::deque<tegula::Plan> plans;
  std::vector<const tegula::Plan*> all;
  for (size_t i = 0; i < problems.size(); ++i) {
    tegula_problem resolved;
    Status status = read_problem(problems[i], resolved);
    if (status.ok()) status = tegula::make_plan(resolved, device, plans.emplace_back());
    if (!status.ok()) return name_problem(i, status);
    all.push_back(&plans.back());
  }
  if (all.empty() || tegula::prepare(all).ok()) return {};
  // One after the other, to find whose failure it was.
  for (size_t i = 0; i < all.size(); ++i) {
    if (const Status status = prepare_one(*all[i]); !status.ok()) return name_problem(i, status);
  }
  return {};
}

}  // namespace

extern "C" {

// ---- Names --------------------------------------------------------------------------------------

const char* tegula_last_error(void) {
  return tegula::error_text();
}

const char* tegula_status_name(int32_t status) {
  switch (status) {
    case TEGULA_OK: return "ok";
    case TEGULA_INVALID_ARGUMENT: return "invalid argument";
    case TEGULA_WRONG_TYPE: return "wrong type";
    case TEGULA_UNSUPPORTED: return "unsupported";
    case TEGULA_OUT_OF_MEMORY: return "out of memory";
    case TEGULA_DEVICE_ERROR: return "device error";
    case TEGULA_INTERNAL_ERROR: return "internal error";
    default: return "?";
  }
}

const char* tegula_dtype_name(int32_t dtype) {
  return tegula::dtype_name(dtype);
}
size_t tegula_dtype_size(int32_t dtype) {
  return tegula::dtype_size(dtype);
}

const char* tegula_isa_name(int32_t isa) {
  switch (isa) {
    case TEGULA_ISA_AUTO: return "auto";
    case TEGULA_ISA_SCALAR: return "scalar";
    case TEGULA_ISA_AVX2: return "avx2";
    case TEGULA_ISA_AVX512: return "avx512";
    case TEGULA_ISA_AVX512BF16: return "avx512bf16";
    case TEGULA_ISA_AMX: return "amx";
    case TEGULA_ISA_AMX_MODEL: return "amx_model";
    default: return "?";
  }
}

int32_t tegula_version(void) {
  return TEGULA_VERSION_MAJOR * 10000 + TEGULA_VERSION_MINOR * 100 + TEGULA_VERSION_PATCH;
}
int32_t tegula_abi_version(void) {
  return TEGULA_ABI_VERSION;
}

// ---- Structures ---------------------------------------------------------------------------------

tegula_status tegula_tensor_init(tegula_tensor* tensor, void* data, int32_t dtype, int32_t ndim,
                                 const int64_t* shape) {
  return guarded([&]() -> Status {
    if (tensor == nullptr) return null("tensor");
    if (tegula::dtype_size(dtype) == 0) {
      return fail(TEGULA_WRONG_TYPE,
                  "tensor: dtype %" PRId32 " is not within %d (f32) and %d (i64)", dtype,
                  TEGULA_F32, TEGULA_I64);
    }
    if (ndim < 0 || ndim > TEGULA_MAX_DIMS) {
      return fail(TEGULA_INVALID_ARGUMENT, "tensor: ndim %" PRId32 " is not within 0 and %d", ndim,
                  TEGULA_MAX_DIMS);
    }
    if (ndim > 0 && shape == nullptr) return null("shape");
    tegula_tensor made{};
    made.data = data;
    made.device_kind = TEGULA_CPU;
    made.type_code = tegula::dtype_info(dtype).dlpack_code;
    made.type_bits = static_cast<uint8_t>(8 * tegula::dtype_size(dtype));
    made.type_lanes = 1;
    made.ndim = ndim;
    int64_t stride = 1, bytes;
    for (int32_t i = ndim - 1; i >= 0; --i) {
      if (shape[i] < 0) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "tensor: shape[%" PRId32 "] %" PRId64 " is less than 0", i, shape[i]);
      }
      made.shape[i] = shape[i];
      made.strides[i] = stride;
      if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[i], 1), &stride) ||
          __builtin_mul_overflow(stride, made.type_bits / 8, &bytes)) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "tensor: shape[%" PRId32 "] %" PRId64 " is beyond 64-bit offsets", i, shape[i]);
      }
    }
    *tensor = made;
    return {};
  });
}

tegula_status tegula_device_init_sized(tegula_device* device, size_t struct_size) {
  return guarded([&]() -> Status {
    TEGULA_RETURN_IF_ERROR(init("device", device, struct_size));
    tegula_device found{};
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_device(nullptr, found));
    write_struct(found, device);
    return {};
  });
}

tegula_status tegula_cuda_device_init_sized(tegula_device* device, size_t struct_size,
                                            int32_t index) {
  return guarded([&]() -> Status {
    TEGULA_RETURN_IF_ERROR(init("device", device, struct_size));
    tegula_device asked{}, found{};
    asked.struct_size = sizeof asked;
    asked.kind = TEGULA_CUDA;
    asked.index = index;
    asked.num_workers = 1;
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_device(&asked, found));
    write_struct(found, device);
    return {};
  });
}

tegula_status tegula_executor_init_sized(tegula_executor* executor, size_t struct_size) {
  return guarded([&] { return init("executor", executor, struct_size); });
}

tegula_status tegula_execution_init_sized(tegula_execution* execution, size_t struct_size) {
  return guarded([&] { return init("execution", execution, struct_size); });
}

tegula_status tegula_forward_args_init_sized(tegula_forward_args* args, size_t struct_size) {
  return guarded([&] { return init("args", args, struct_size); });
}

tegula_status tegula_problem_init_sized(tegula_problem* problem, size_t struct_size) {
  return guarded([&]() -> Status {
    TEGULA_RETURN_IF_ERROR(init("problem", problem, struct_size));
    problem->window_left = -1;
    problem->window_right = -1;
    return {};
  });
}

tegula_status tegula_plan_info_init_sized(tegula_plan_info* info, size_t struct_size) {
  return guarded([&] { return init("info", info, struct_size); });
}

tegula_status tegula_append_kv_args_init_sized(tegula_append_kv_args* args, size_t struct_size) {
  return guarded([&] { return init("args", args, struct_size); });
}

tegula_status tegula_combine_args_init_sized(tegula_combine_args* args, size_t struct_size) {
  return guarded([&] { return init("args", args, struct_size); });
}

// ---- Forward ------------------------------------------------------------------------------------

tegula_status tegula_describe_forward(const tegula_forward_args* args, tegula_problem* problem) {
  return guarded([&]() -> Status {
    tegula_forward_args known_args;
    tegula_problem known_problem;
    TEGULA_RETURN_IF_ERROR(read_struct("args", args, known_args));
    TEGULA_RETURN_IF_ERROR(read_struct("problem", problem, known_problem));
    TEGULA_RETURN_IF_ERROR(tegula::api::describe_forward(known_args, known_problem));
    write_struct(known_problem, problem);
    return {};
  });
}

tegula_status tegula_plan_create(const tegula_problem* problem, const tegula_device* device,
                                 tegula_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null("plan");
    const tegula::FloatEnvironment environment;  // scale and softcap are rounded here
    tegula_problem resolved;
    tegula_device on;
    TEGULA_RETURN_IF_ERROR(read_problem(problem, resolved));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_device(device, on));
    auto made = std::make_unique<tegula_plan>();
    TEGULA_RETURN_IF_ERROR(tegula::make_plan(resolved, on, made->plan));
    *plan = made.release();
    return {};
  });
}

void tegula_plan_destroy(tegula_plan* plan) {
  delete plan;
}

tegula_status tegula_plan_get_info(const tegula_plan* plan, tegula_plan_info* info) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null("plan");
    tegula_plan_info known;
    TEGULA_RETURN_IF_ERROR(read_struct("info", info, known));
    const tegula::Plan& p = plan->plan;
    known.implementation = p.implementation->name;
    known.device_kind = p.device.kind;
    known.isa = p.device.isa;
    known.num_workers = p.device.num_workers;
    known.tile_m = p.tile_m;
    known.tile_n = p.tile_n;
    known.num_splits = p.num_splits;
    known.scratch_bytes = p.scratch_bytes;
    known.state_bytes = p.state_bytes;
    write_struct(known, info);
    return {};
  });
}

tegula_status tegula_prepare(const tegula_plan* plan) {
  return guarded([&] { return plan == nullptr ? null("plan") : prepare_one(plan->plan); });
}

tegula_status tegula_warm_up(const tegula_problem* const* problems, size_t count,
                             const tegula_device* device) {
  return guarded([&]() -> Status {
    if (problems == nullptr && count != 0) {
      return fail(TEGULA_INVALID_ARGUMENT, "problems: is NULL, but count is %zu", count);
    }
    tegula_device on;
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_device(device, on));
    return warm_up({problems, count}, on);
  });
}

tegula_status tegula_explain(const tegula_plan* plan, char* text, size_t size, size_t* needed) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null("plan");
    if (text == nullptr && size != 0) {
      return fail(TEGULA_INVALID_ARGUMENT, "text: is NULL, but size is %zu", size);
    }
    const std::string whole = tegula::explain(plan->plan);
    if (needed != nullptr) *needed = whole.size() + 1;
    if (size != 0) {
      const size_t length = std::min(size - 1, whole.size());
      std::memcpy(text, whole.data(), length);
      text[length] = '\0';
    }
    return {};
  });
}

tegula_status tegula_forward(const tegula_plan* plan, const tegula_forward_args* args,
                             const tegula_execution* execution) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null("plan");
    const tegula::Plan& p = plan->plan;
    tegula_forward_args known;
    tegula::ForwardCall call;
    tegula::Execution how;
    TEGULA_RETURN_IF_ERROR(read_struct("args", args, known));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_execution(execution, &p.device, how));
    if (how.workspace != nullptr && how.workspace_size < p.scratch_bytes) {
      return fail(TEGULA_OUT_OF_MEMORY,
                  "execution.workspace_size: %zu is less than the plan's scratch_bytes %zu",
                  how.workspace_size, p.scratch_bytes);
    }
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_forward(p.problem, p.device, known, call));
    if (p.device.kind == TEGULA_CUDA) {
      TEGULA_RETURN_IF_ERROR(tegula::api::check_cuda_execution(how, p.device));
    }
    // Without output there is nothing to do, and no memory of the caller's bounds the batch.
    if (!tegula::api::has_elements(*known.o)) return {};
    return p.implementation->forward(p, call, how);
  });
}

// ---- Operations without a plan ------------------------------------------------------------------

tegula_status tegula_append_kv(const tegula_append_kv_args* args,
                               const tegula_execution* execution) {
  return guarded([&]() -> Status {
    tegula_append_kv_args known;
    tegula::AppendCall call;
    tegula::Execution how;
    TEGULA_RETURN_IF_ERROR(read_struct("args", args, known));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_execution(execution, nullptr, how));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_append_kv(known, call));
    if (!tegula::api::has_elements(*known.k_new)) return {};
    return tegula::run_append_kv(call, how);
  });
}

tegula_status tegula_combine(const tegula_combine_args* args, const tegula_execution* execution) {
  return guarded([&]() -> Status {
    tegula_combine_args known;
    tegula::CombineCall call;
    tegula::Execution how;
    TEGULA_RETURN_IF_ERROR(read_struct("args", args, known));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_execution(execution, nullptr, how));
    TEGULA_RETURN_IF_ERROR(tegula::api::resolve_combine(known, call));
    if (!tegula::api::has_elements(*known.o)) return {};
    return tegula::run_combine(call, how);
  });
}

// ---- The library --------------------------------------------------------------------------------

tegula_status tegula_capability(const tegula_device* device, const char* name, int64_t* value) {
  return guarded([&]() -> Status {
    if (name == nullptr) return null("name");
    if (value == nullptr) return null("value");
    tegula_device on{};
    const Status status = tegula::api::resolve_device(device, on);
    // A GPU that no driver shows can do nothing: that is an answer, too.
    const bool absent = on.kind == TEGULA_CUDA && status.code() != TEGULA_INVALID_ARGUMENT;
    if (!status.ok() && !absent) return status;
    return tegula::capability(on, name, value);
  });
}

void tegula_set_log_callback(tegula_log_fn callback, void* context) {
  tegula::set_log_callback(callback, context);
}

tegula_status tegula_trim_memory(size_t* freed) {
  return guarded([&]() -> Status {
    const size_t bytes = tegula::trim_memory();
    if (freed != nullptr) *freed = bytes;
    return {};
  });
}

}  // extern "C"
