// SPDX-License-Identifier: Apache-2.0
// Python objects as tegula_tensors: PyTorch's tensors through DLPack's C interface, numpy's arrays
// through __array_interface__ (with the types of ml_dtypes, which DLPack does not carry there),
// everything else through __dlpack__.
#pragma once

#include <nanobind/nanobind.h>
#include <tegula/tegula.h>

#include <string>

namespace tegula::python {

namespace nb = nanobind;

class Operand {
 public:
  // name: of the argument, for errors. None is absent.
  void read(nb::handle object, const char* name);
  // The same for memory that the call writes: a read-only array is refused by name.
  void read_output(nb::handle object, const char* name);
  // 8-bit memory as the type that the caller names (kv_dtype); TEGULA_DTYPE_NONE: nothing to do.
  void reinterpret(int dtype, const char* name);

  bool present() const { return present_; }
  const tegula_tensor* tensor() const { return present_ ? &index_.tensor : nullptr; }
  const tegula_index* index() const { return present_ ? &index_ : nullptr; }
  // The framework's current stream on the tensor's device, where it tells it; else nullptr.
  void* stream() const { return stream_; }

 private:
  void read_numpy(nb::handle object, const char* name);
  void read_dlpack(nb::handle object, const char* name);
  void take(const struct DLTensor& tensor, const char* name);

  bool present_ = false;
  bool read_only_ = false;
  tegula_index index_{};
  void* stream_ = nullptr;
  nb::object owner_;  // keeps the memory for the length of the call
};

// Raises an exception of Python.
[[noreturn]] void raise(PyObject* type, const std::string& text);

// Turns a failure into the exception of contract.md, 13.
void check(tegula_status status);

}  // namespace tegula::python
