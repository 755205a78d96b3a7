// SPDX-License-Identifier: Apache-2.0
#include "operand.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "dlpack.hpp"

namespace tegula::python {
namespace {

struct TypeName {
  std::string_view name;
  DLDataType type;
};
// numpy's and ml_dtypes' names.
constexpr TypeName kTypes[] = {
    {"float32", {2, 32, 1}},        {"float16", {2, 16, 1}},     {"bfloat16", {4, 16, 1}},
    {"float8_e4m3fn", {10, 8, 1}},  {"float8_e5m2", {12, 8, 1}}, {"int32", {0, 32, 1}},
    {"int64", {0, 64, 1}},          {"uint8", {1, 8, 1}},        {"bool", {6, 8, 1}},
    {"float64", {2, 64, 1}},        {"int8", {0, 8, 1}},         {"int16", {0, 16, 1}},
    {"uint16", {1, 16, 1}},         {"uint32", {1, 32, 1}},      {"uint64", {1, 64, 1}},
};

std::string kind_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

// What a framework says of a tensor that it cannot hand over (sparse, quantised, without memory),
// in one line that names the argument.
[[noreturn]] void raise_no_view(const char* name) {
  std::string text = "no DLPack view of it";
  if (PyErr_Occurred()) {
    const nb::python_error error;
    text = nb::cast<std::string>(nb::str(error.value()));
    text.resize(std::min(text.size(), text.find('\n')));
  }
  raise(PyExc_TypeError, std::string(name) + ": " + text);
}

// The exchange table of an object's type, or nullptr. Of the types seen last, without a lookup.
const DLExchangeApi* exchange_of(nb::handle object) {
  struct Known {
    PyTypeObject* type;
    const DLExchangeApi* api;
  };
  static Known known{nullptr, nullptr};  // under the GIL
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (known.type == type) return known.api;
  const DLExchangeApi* api = nullptr;
  nb::object capsule = nb::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
  } else if (PyCapsule_CheckExact(capsule.ptr())) {
    api = static_cast<const DLExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) PyErr_Clear();
    while (api != nullptr && api->version.major != 1) api = api->previous;
  }
  if (api != nullptr) {
    Py_INCREF(type);  // so that no other type takes its address
    known = {type, api};
  }
  return api;
}

nb::handle numpy_array_type() {
  static PyObject* type = nullptr;
  if (type == nullptr) {
    PyObject* const modules = PyImport_GetModuleDict();
    PyObject* const numpy = PyDict_GetItemString(modules, "numpy");
    if (numpy == nullptr) return {};  // then no array of it exists
    type = PyObject_GetAttrString(numpy, "ndarray");
    if (type == nullptr) PyErr_Clear();
  }
  return type;
}

}  // namespace

void raise(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

void check(tegula_status status) {
  if (status == TEGULA_OK) return;
  PyObject* const type = status == TEGULA_INVALID_ARGUMENT ? PyExc_ValueError
                         : status == TEGULA_WRONG_TYPE     ? PyExc_TypeError
                         : status == TEGULA_UNSUPPORTED    ? PyExc_NotImplementedError
                         : status == TEGULA_OUT_OF_MEMORY  ? PyExc_MemoryError
                                                           : PyExc_RuntimeError;
  raise(type == PyExc_MemoryError ? PyExc_RuntimeError : type, tegula_last_error());
}

void Operand::read(nb::handle object, const char* name) {
  present_ = !object.is_none();
  if (!present_) return;
  if (const DLExchangeApi* const api = exchange_of(object)) {
    DLTensor tensor{};
    std::int64_t shape[8], strides[8];
    tensor.shape = shape;
    tensor.strides = strides;
    if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
      raise_no_view(name);
    }
    take(tensor, name);
    if (tensor.device.type != TEGULA_CPU && api->current_stream != nullptr &&
        api->current_stream(tensor.device.type, tensor.device.index, &stream_) != 0) {
      throw nb::python_error();
    }
    return;
  }
  const nb::handle numpy = numpy_array_type();
  if (numpy.is_valid() && PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(numpy.ptr()))) {
    return read_numpy(object, name);
  }
  read_dlpack(object, name);
}

void Operand::read_output(nb::handle object, const char* name) {
  read(object, name);
  if (present_ && read_only_) {
    raise(PyExc_ValueError, std::string(name) + ": the array is read-only");
  }
}

void Operand::reinterpret(int dtype, const char* name) {
  if (!present_ || dtype == TEGULA_DTYPE_NONE) return;
  tegula_tensor& tensor = index_.tensor;
  const std::uint8_t code = dtype == TEGULA_E4M3 ? 10 : 12;
  if (tensor.type_bits != 8 || (tensor.type_code > 1 && tensor.type_code != code)) {
    raise(PyExc_TypeError, std::string(name) + ": kv_dtype " + tegula_dtype_name(dtype) +
                               " names the type of 8-bit memory (uint8), not of this tensor");
  }
  tensor.type_code = code;
}

void Operand::take(const DLTensor& tensor, const char* name) {
  tegula_tensor& to = index_.tensor;
  if (tensor.ndim > TEGULA_MAX_DIMS) {
    raise(PyExc_ValueError, std::string(name) + ": " + std::to_string(tensor.ndim) +
                                " dimensions are more than " + std::to_string(TEGULA_MAX_DIMS));
  }
  to.data = tensor.data;
  to.byte_offset = tensor.byte_offset;
  // Pinned memory of the host is memory of the host; managed memory is the device's.
  to.device_kind = tensor.device.type == 3    ? static_cast<std::int32_t>(TEGULA_CPU)
                   : tensor.device.type == 13 ? static_cast<std::int32_t>(TEGULA_CUDA)
                                              : tensor.device.type;
  to.device_index = to.device_kind == TEGULA_CPU ? 0 : tensor.device.index;
  to.type_code = tensor.dtype.code;
  to.type_bits = tensor.dtype.bits;
  to.type_lanes = tensor.dtype.lanes;
  to.ndim = tensor.ndim;
  std::int64_t packed = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    to.shape[i] = tensor.shape[i];
    to.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : packed;
    packed *= tensor.shape[i];
  }
}

void Operand::read_numpy(nb::handle object, const char* name) {
  const nb::object interface = nb::getattr(object, "__array_interface__");
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  const nb::tuple shape = nb::cast<nb::tuple>(interface["shape"]);
  const nb::object strides = interface["strides"];
  const nb::object dtype = nb::getattr(object, "dtype");
  const std::string type = nb::cast<std::string>(nb::str(nb::getattr(dtype, "name")));
  const auto ndim = static_cast<std::int32_t>(nb::len(shape));
  DLTensor tensor{};
  std::int64_t extents[8], steps[8];
  for (const TypeName& known : kTypes) {
    if (known.name == type) tensor.dtype = known.type;
  }
  const bool native = nb::cast<bool>(nb::getattr(dtype, "isnative"));
  if (tensor.dtype.bits == 0 || !native) {
    raise(PyExc_TypeError, std::string(name) + ": numpy arrays of " + type +
                               (native ? "" : " in the other byte order") + " are not taken");
  }
  if (!nb::getattr(object, "_mask", nb::none()).is_none()) {
    raise(PyExc_TypeError, std::string(name) + ": a masked array, whose mask would not count");
  }
  if (ndim > TEGULA_MAX_DIMS) {
    raise(PyExc_ValueError, std::string(name) + ": " + std::to_string(ndim) +
                                " dimensions are more than " + std::to_string(TEGULA_MAX_DIMS));
  }
  const std::int64_t size = tensor.dtype.bits / 8;
  for (std::int32_t i = 0; i < ndim; ++i) {
    extents[i] = nb::cast<std::int64_t>(shape[static_cast<std::size_t>(i)]);
    if (strides.is_none()) continue;
    const auto bytes = nb::cast<std::int64_t>(strides[i]);
    if (bytes % size != 0 && extents[i] > 1) {
      raise(PyExc_ValueError, std::string(name) + ": stride " + std::to_string(bytes) +
                                  " bytes is no multiple of the element's " + std::to_string(size));
    }
    steps[i] = bytes / size;
  }
  tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  tensor.device = {TEGULA_CPU, 0};
  tensor.ndim = ndim;
  tensor.shape = extents;
  tensor.strides = strides.is_none() ? nullptr : steps;
  take(tensor, name);
  read_only_ = nb::cast<bool>(data[1]);
}

void Operand::read_dlpack(nb::handle object, const char* name) {
  if (!nb::hasattr(object, "__dlpack__")) {
    raise(PyExc_TypeError, std::string(name) + ": " + kind_of(object) +
                               " is no array: it has neither __dlpack__ nor __array_interface__");
  }
  const nb::object export_to = nb::getattr(object, "__dlpack__");
  const nb::tuple device = nb::cast<nb::tuple>(nb::getattr(object, "__dlpack_device__")());
  nb::dict keywords;
  // The call goes to the default stream: 1 asks that what fills the array be ordered before it.
  if (nb::cast<int>(nb::int_(device[0])) == TEGULA_CUDA) keywords["stream"] = nb::int_(1);
  keywords["max_version"] = nb::make_tuple(1, 0);
  owner_ = nb::steal(PyObject_Call(export_to.ptr(), nb::tuple().ptr(), keywords.ptr()));
  if (!owner_.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // before DLPack 1.0
    PyErr_Clear();
    PyDict_DelItemString(keywords.ptr(), "max_version");
    owner_ = nb::steal(PyObject_Call(export_to.ptr(), nb::tuple().ptr(), keywords.ptr()));
  }
  if (!owner_.is_valid()) raise_no_view(name);
  // The capsule keeps its name: its own destructor gives the tensor back.
  if (PyCapsule_IsValid(owner_.ptr(), "dltensor_versioned")) {
    const auto* const managed = static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(owner_.ptr(), "dltensor_versioned"));
    if (managed->version.major > 1) {
      raise(PyExc_BufferError, std::string(name) + ": DLPack " +
                                   std::to_string(managed->version.major) + " is not known");
    }
    read_only_ = (managed->flags & kDLReadOnly) != 0;
    return take(managed->tensor, name);
  }
  if (!PyCapsule_IsValid(owner_.ptr(), "dltensor")) {
    raise(PyExc_TypeError, std::string(name) + ": __dlpack__ returned no DLPack capsule");
  }
  take(static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor"))->tensor,
       name);
}

}  // namespace tegula::python
