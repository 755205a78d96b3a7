// SPDX-License-Identifier: Apache-2.0
// tegula._core: the C ABI for Python. Operands and options come as tuples in the order of the
// tables here, which core.py fills; core.py has the signatures, defaults and documentation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <tegula/tegula.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "operand.hpp"
#include "plans.hpp"

namespace tegula::python {
namespace {

// ---- Devices

// Of the tensors: this machine's CPU, or a GPU, each described once.
const tegula_device& device_of(const tegula_tensor& tensor) {
  constexpr int kMostGpus = 64;
  static std::mutex mutex;
  static tegula_device cpu, gpus[kMostGpus];
  static bool known_cpu = false, known_gpus[kMostGpus] = {};
  const std::lock_guard lock(mutex);
  if (tensor.device_kind != TEGULA_CUDA || tensor.device_index < 0 ||
      tensor.device_index >= kMostGpus) {
    // Other kinds of device are refused by the checks of the call.
    if (!known_cpu) check(tegula_device_init(&cpu));
    known_cpu = true;
    return cpu;
  }
  tegula_device& gpu = gpus[tensor.device_index];
  if (!known_gpus[tensor.device_index]) check(tegula_cuda_device_init(&gpu, tensor.device_index));
  known_gpus[tensor.device_index] = true;
  return gpu;
}

tegula_execution execution_of(const Operand& first, Operand& error_word, nb::handle word) {
  tegula_execution execution;
  check(tegula_execution_init(&execution));
  execution.stream = first.stream();
  if (!word.is_none()) {
    error_word.read_output(word, "error_word");
    const tegula_tensor& tensor = *error_word.tensor();
    if (tensor.type_code != 0 || tensor.type_bits != 32 ||
        tensor.device_kind != first.tensor()->device_kind) {
      nb::raise_type_error("error_word: one int32 on the device of q is taken");
    }
    execution.error_word = reinterpret_cast<std::int32_t*>(static_cast<char*>(tensor.data) +
                                                           tensor.byte_offset);
  }
  return execution;
}

// ---- Forward

enum ForwardOperand {
  kQ, kK, kV, kO, kLse, kCuSeqlensQ, kCuSeqlensK, kSequsedQ, kSequsedK, kLeftpadK, kPageTable,
  kPageIndices, kPageIndptr, kCuSeqlensNew, kSink, kAlibiSlopes, kBias, kDescaleQ, kDescaleK,
  kDescaleV, kForwardOperands
};
constexpr const char* kForwardNames[kForwardOperands] = {
    "q", "k", "v", "out", "lse_out", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
    "leftpad_k", "page_table", "page_indices", "page_indptr", "cu_seqlens_new", "sink",
    "alibi_slopes", "bias", "descale_q", "descale_k", "descale_v"};

enum ForwardOption {
  kSeqlenNew, kKvDtype, kMaxSeqlenQ, kMaxSeqlenK, kCausal, kWindowLeft, kWindowRight, kChunk,
  kSoftmaxScale, kSoftcap, kNumSplits, kFixedSplit, kFastAccumulate, kForwardOptions
};

constexpr const char* kOptionNames[kForwardOptions] = {
    "seqlen_new", "kv_dtype", "max_seqlen_q", "max_seqlen_k", "causal", "window_left",
    "window_right", "attention_chunk", "softmax_scale", "softcap", "num_splits", "fixed_split",
    "fast_accumulate"};

[[noreturn]] void raise_option(PyObject* type, int i, nb::handle value, const char* what) {
  raise(type, std::string(kOptionNames[i]) + ": " + nb::repr(value).c_str() + what);
}

// An int, a numpy int, a 0-dimensional tensor: what has __index__. Never a rounded float.
std::int64_t integer(const nb::tuple& options, int i) {
  const nb::handle value = PyTuple_GetItem(options.ptr(), i);
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    raise_option(PyExc_TypeError, i, value, " is no integer");
  }
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) raise_option(PyExc_ValueError, i, value, " does not fit into 64 bits");
  return result;
}

double real(const nb::tuple& options, int i) {
  const nb::handle value = PyTuple_GetItem(options.ptr(), i);
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    raise_option(PyExc_TypeError, i, value, " is no number");
  }
  return result;
}

bool absent(const nb::tuple& options, int i) {
  return PyTuple_GetItem(options.ptr(), i) == Py_None;
}

struct Forward {
  std::array<Operand, kForwardOperands> operands;
  tegula_forward_args args;
  tegula_problem problem;

  Forward(const nb::tuple& tensors, const nb::tuple& options) {
    if (nb::len(tensors) != kForwardOperands || nb::len(options) != kForwardOptions) {
      nb::raise_type_error("the tuples are not those of core.py");
    }
    for (int i = 0; i < kForwardOperands; ++i) {
      const nb::handle tensor = PyTuple_GetItem(tensors.ptr(), i);
      if (i == kO || i == kLse) {
        operands[static_cast<std::size_t>(i)].read_output(tensor, kForwardNames[i]);
      } else {
        operands[static_cast<std::size_t>(i)].read(tensor, kForwardNames[i]);
      }
    }
    const int kv_dtype = static_cast<int>(integer(options, kKvDtype));
    operands[kK].reinterpret(kv_dtype, "k");
    operands[kV].reinterpret(kv_dtype, "v");
    check(tegula_forward_args_init(&args));
    const auto tensor = [this](ForwardOperand i) { return operands[i].tensor(); };
    const auto index = [this](ForwardOperand i) { return operands[i].index(); };
    args.q = tensor(kQ);
    args.k = tensor(kK);
    args.v = tensor(kV);
    args.o = tensor(kO);
    args.lse = tensor(kLse);
    args.cu_seqlens_q = index(kCuSeqlensQ);
    args.cu_seqlens_k = index(kCuSeqlensK);
    args.seqused_q = index(kSequsedQ);
    args.seqused_k = index(kSequsedK);
    args.leftpad_k = index(kLeftpadK);
    args.page_table = index(kPageTable);
    args.page_indices = index(kPageIndices);
    args.page_indptr = index(kPageIndptr);
    args.cu_seqlens_new = index(kCuSeqlensNew);
    if (!absent(options, kSeqlenNew)) args.seqlen_new = integer(options, kSeqlenNew);
    args.sink = tensor(kSink);
    args.alibi_slopes = tensor(kAlibiSlopes);
    args.bias = tensor(kBias);
    args.descale_q = tensor(kDescaleQ);
    args.descale_k = tensor(kDescaleK);
    args.descale_v = tensor(kDescaleV);
    std::memset(&problem, 0, sizeof problem);  // its bytes are the key of the plan
    check(tegula_problem_init(&problem));
    check(tegula_describe_forward(&args, &problem));
    if (!absent(options, kMaxSeqlenQ)) problem.max_seqlen_q = integer(options, kMaxSeqlenQ);
    if (!absent(options, kMaxSeqlenK)) problem.max_seqlen_k = integer(options, kMaxSeqlenK);
    problem.causal = static_cast<std::int32_t>(integer(options, kCausal));
    problem.window_left = integer(options, kWindowLeft);
    problem.window_right = integer(options, kWindowRight);
    problem.attention_chunk = integer(options, kChunk);
    if (!absent(options, kSoftmaxScale)) {
      problem.softmax_scale = real(options, kSoftmaxScale);
      if (!(problem.softmax_scale > 0)) {  // 0 would mean the default
        raise_option(PyExc_ValueError, kSoftmaxScale, PyTuple_GetItem(options.ptr(), kSoftmaxScale),
                     " is not above 0");
      }
    }
    problem.softcap = real(options, kSoftcap);
    problem.num_splits = integer(options, kNumSplits);
    problem.fixed_split = integer(options, kFixedSplit);
    problem.fast_accumulate = static_cast<std::int32_t>(integer(options, kFastAccumulate));
  }
};

PlanCache& plan_cache() {
  static PlanCache* const cache = new PlanCache;  // outlives the interpreter's other threads
  return *cache;
}

PlanPointer plan_of(const Forward& forward) {
  PlanPointer plan;
  check(plan_cache().find(forward.problem, device_of(*forward.args.q), plan));
  return plan;
}

void forward(const nb::tuple& operands, const nb::tuple& options, nb::handle error_word) {
  const Forward call(operands, options);
  const PlanPointer plan = plan_of(call);
  Operand word;
  const tegula_execution execution = execution_of(call.operands[kQ], word, error_word);
  tegula_status status;
  {
    const nb::gil_scoped_release release;
    status = tegula_forward(plan.get(), &call.args, &execution);
  }
  check(status);
}

class Plan {
 public:
  explicit Plan(PlanPointer plan) : plan_(std::move(plan)) {
    check(tegula_plan_info_init(&info_));
    check(tegula_plan_get_info(plan_.get(), &info_));
  }
  const tegula_plan_info& info() const { return info_; }
  std::string explain() const {
    std::size_t needed = 0;
    check(tegula_explain(plan_.get(), nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(tegula_explain(plan_.get(), text.data(), text.size(), nullptr));
    text.resize(needed > 0 ? needed - 1 : 0);
    return text;
  }
  void prepare() const {
    tegula_status status;
    {
      const nb::gil_scoped_release release;
      status = tegula_prepare(plan_.get());
    }
    check(status);
  }

 private:
  PlanPointer plan_;
  tegula_plan_info info_;
};

Plan plan(const nb::tuple& operands, const nb::tuple& options) {
  return Plan(plan_of(Forward(operands, options)));
}

// ---- append_kv

void append_kv(const nb::tuple& tensors, int rotary_style, int kv_dtype) {
  constexpr const char* kNames[] = {
      "k_new", "v_new", "k_cache", "v_cache", "cu_seqlens_new", "seqused_k", "page_table",
      "page_indices", "page_indptr", "slot_mapping", "positions", "cos", "sin", "q", "q_out",
      "descale_k", "descale_v"};
  constexpr int kCount = sizeof kNames / sizeof kNames[0];
  if (nb::len(tensors) != kCount) nb::raise_type_error("the tuple is not that of core.py");
  std::array<Operand, kCount> operands;
  for (int i = 0; i < kCount; ++i) {
    const nb::handle tensor = PyTuple_GetItem(tensors.ptr(), i);
    const bool written = i == 2 || i == 3 || i == 14;
    Operand& operand = operands[static_cast<std::size_t>(i)];
    written ? operand.read_output(tensor, kNames[i]) : operand.read(tensor, kNames[i]);
  }
  operands[2].reinterpret(kv_dtype, "k_cache");
  operands[3].reinterpret(kv_dtype, "v_cache");
  tegula_append_kv_args args;
  check(tegula_append_kv_args_init(&args));
  args.k_new = operands[0].tensor();
  args.v_new = operands[1].tensor();
  args.k_cache = operands[2].tensor();
  args.v_cache = operands[3].tensor();
  args.cu_seqlens_new = operands[4].index();
  args.seqused_k = operands[5].index();
  args.page_table = operands[6].index();
  args.page_indices = operands[7].index();
  args.page_indptr = operands[8].index();
  args.slot_mapping = operands[9].index();
  args.positions = operands[10].index();
  args.cos = operands[11].tensor();
  args.sin = operands[12].tensor();
  args.rotary_style = rotary_style;
  args.q = operands[13].tensor();
  args.q_out = operands[14].tensor();
  args.descale_k = operands[15].tensor();
  args.descale_v = operands[16].tensor();
  Operand word;
  const tegula_execution execution = execution_of(operands[2], word, nb::none());
  tegula_status status;
  {
    const nb::gil_scoped_release release;
    status = tegula_append_kv(&args, &execution);
  }
  check(status);
}

// ---- combine

void combine(nb::handle o_partial, nb::handle lse_partial, nb::handle out, nb::handle lse_out,
             nb::handle sink) {
  std::array<Operand, 5> operands;
  operands[0].read(o_partial, "o_partial");
  operands[1].read(lse_partial, "lse_partial");
  operands[2].read_output(out, "out");
  operands[3].read_output(lse_out, "lse_out");
  operands[4].read(sink, "sink");
  tegula_combine_args args;
  check(tegula_combine_args_init(&args));
  args.o_partial = operands[0].tensor();
  args.lse_partial = operands[1].tensor();
  args.o = operands[2].tensor();
  args.lse = operands[3].tensor();
  args.sink = operands[4].tensor();
  Operand word;
  const tegula_execution execution = execution_of(operands[0], word, nb::none());
  tegula_status status;
  {
    const nb::gil_scoped_release release;
    status = tegula_combine(&args, &execution);
  }
  check(status);
}

// ---- The library

std::int64_t capability(const std::string& name, int cuda_index) {
  tegula_device device;
  if (cuda_index >= 0) check(tegula_cuda_device_init(&device, cuda_index));
  std::int64_t value = 0;
  check(tegula_capability(cuda_index >= 0 ? &device : nullptr, name.c_str(), &value));
  return value;
}

std::size_t trim_memory() {
  std::size_t freed = 0;
  check(tegula_trim_memory(&freed));
  return freed;
}

}  // namespace
}  // namespace tegula::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace tegula::python;
  module.attr("__version__") = std::to_string(TEGULA_VERSION_MAJOR) + "." +
                               std::to_string(TEGULA_VERSION_MINOR) + "." +
                               std::to_string(TEGULA_VERSION_PATCH);
  module.def("forward", &forward, nb::arg("operands"), nb::arg("options"),
             nb::arg("error_word").none());
  module.def("plan", &plan, nb::arg("operands"), nb::arg("options"));
  module.def("append_kv", &append_kv, nb::arg("operands"), nb::arg("rotary_style"),
             nb::arg("kv_dtype"));
  module.def("combine", &combine, nb::arg("o_partial"), nb::arg("lse_partial"), nb::arg("out"),
             nb::arg("lse_out").none(), nb::arg("sink").none());
  module.def("capability", &capability, nb::arg("name"), nb::arg("cuda_index") = -1);
  module.def("trim_memory", &trim_memory);
  module.def("plan_cache_size", [] { return plan_cache().size(); });
  module.def("plan_cache_clear", [] { plan_cache().clear(); });
  nb::class_<Plan>(module, "Plan")
      .def_prop_ro("implementation", [](const Plan& p) { return p.info().implementation; })
      .def_prop_ro("isa", [](const Plan& p) { return tegula_isa_name(p.info().isa); })
      .def_prop_ro("num_workers", [](const Plan& p) { return p.info().num_workers; })
      .def_prop_ro("tile_m", [](const Plan& p) { return p.info().tile_m; })
      .def_prop_ro("tile_n", [](const Plan& p) { return p.info().tile_n; })
      .def_prop_ro("num_splits", [](const Plan& p) { return p.info().num_splits; })
      .def_prop_ro("scratch_bytes", [](const Plan& p) { return p.info().scratch_bytes; })
      .def_prop_ro("state_bytes", [](const Plan& p) { return p.info().state_bytes; })
      .def("prepare", &Plan::prepare)
      .def("explain", &Plan::explain);
}
