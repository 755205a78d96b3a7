# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks need of include/tegula/tegula.h, by ctypes: the structures, typed functions, and a
forward that is planned once and called often. A test compares every size, offset and value with the header."""
import ctypes
from ctypes import (CDLL, POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p)

ABI_VERSION = 1
MAX_DIMS = 5
OK = 0
CPU = 1
CUDA = 2
RAGGED = 1
UNALIGNED_Q, UNALIGNED_K, UNALIGNED_V = 1, 2, 4
UNALIGNED = UNALIGNED_Q | UNALIGNED_K | UNALIGNED_V

# PyTorch's name of a type -> DLPack's (type_code, type_bits)
TYPES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float8_e4m3fn": (10, 8),
         "float8_e5m2": (12, 8), "int32": (0, 32), "int64": (0, 64)}


class Tensor(Structure):
    c_name = "tegula_tensor"
    _fields_ = [("data", c_void_p), ("device_kind", c_int32), ("device_index", c_int32), ("type_code", c_uint8),
                ("type_bits", c_uint8), ("type_lanes", c_uint16), ("ndim", c_int32), ("shape", c_int64 * MAX_DIMS),
                ("strides", c_int64 * MAX_DIMS), ("byte_offset", c_uint64)]

    @classmethod
    def of(cls, tensor):
        """A view of a PyTorch tensor's memory, which the caller keeps alive."""
        code, bits = TYPES[str(tensor.dtype).removeprefix("torch.")]
        dims = (c_int64 * MAX_DIMS)
        kind, index = (CUDA, tensor.device.index) if tensor.is_cuda else (CPU, 0)
        return cls(tensor.data_ptr(), kind, index, code, bits, 1, tensor.dim(), dims(*tensor.shape),
                   dims(*tensor.stride()), 0)


class Index(Structure):
    c_name = "tegula_index"
    _fields_ = [("tensor", Tensor), ("host", c_void_p)]


class Problem(Structure):
    c_name = "tegula_problem"
    _fields_ = [("struct_size", c_size_t), ("operation", c_int32), ("q_dtype", c_int32), ("kv_dtype", c_int32),
                ("o_dtype", c_int32), ("bias_dtype", c_int32), ("layout_q", c_int32), ("layout_k", c_int32),
                ("operands", c_uint32), ("batch", c_int64), ("seqlen_q", c_int64), ("seqlen_k", c_int64),
                ("total_q", c_int64), ("total_k", c_int64), ("num_heads_q", c_int64), ("num_heads_kv", c_int64),
                ("head_dim", c_int64), ("head_dim_v", c_int64), ("num_pages", c_int64), ("page_size", c_int64),
                ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64), ("causal", c_int32),
                ("fast_accumulate", c_int32), ("window_left", c_int64), ("window_right", c_int64),
                ("attention_chunk", c_int64), ("softmax_scale", c_double), ("softcap", c_double),
                ("num_splits", c_int64), ("fixed_split", c_int64), ("unaligned", c_uint32)]


class Device(Structure):
    c_name = "tegula_device"
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("index", c_int32), ("isa", c_int32),
                ("num_workers", c_int32), ("tuning", c_void_p), ("compute_capability", c_int32), ("num_sms", c_int32)]


class Execution(Structure):
    c_name = "tegula_execution"
    _fields_ = [("struct_size", c_size_t), ("executor", c_void_p), ("stream", c_void_p), ("workspace", c_void_p),
                ("workspace_size", c_size_t), ("error_word", c_void_p)]


class ForwardArgs(Structure):
    c_name = "tegula_forward_args"
    _fields_ = [("struct_size", c_size_t), ("q", POINTER(Tensor)), ("k", POINTER(Tensor)), ("v", POINTER(Tensor)),
                ("o", POINTER(Tensor)), ("lse", POINTER(Tensor)), ("cu_seqlens_q", POINTER(Index)),
                ("cu_seqlens_k", POINTER(Index)), ("seqused_q", POINTER(Index)), ("seqused_k", POINTER(Index)),
                ("leftpad_k", POINTER(Index)), ("page_table", POINTER(Index)), ("page_indices", POINTER(Index)),
                ("page_indptr", POINTER(Index)), ("seqlen_new", c_int64), ("cu_seqlens_new", POINTER(Index)),
                ("sink", POINTER(Tensor)), ("alibi_slopes", POINTER(Tensor)), ("bias", POINTER(Tensor)),
                ("descale_q", POINTER(Tensor)), ("descale_k", POINTER(Tensor)), ("descale_v", POINTER(Tensor))]


class PlanInfo(Structure):
    c_name = "tegula_plan_info"
    _fields_ = [("struct_size", c_size_t), ("implementation", c_char_p), ("device_kind", c_int32), ("isa", c_int32),
                ("num_workers", c_int32), ("tile_m", c_int64), ("tile_n", c_int64), ("num_splits", c_int64),
                ("scratch_bytes", c_size_t), ("state_bytes", c_size_t)]


STRUCTURES = (Tensor, Index, Problem, Device, Execution, ForwardArgs, PlanInfo)
CONSTANTS = {"TEGULA_ABI_VERSION": ABI_VERSION, "TEGULA_MAX_DIMS": MAX_DIMS, "TEGULA_OK": OK, "TEGULA_CPU": CPU,
             "TEGULA_CUDA": CUDA, "TEGULA_UNALIGNED_Q": UNALIGNED_Q, "TEGULA_UNALIGNED_K": UNALIGNED_K,
             "TEGULA_UNALIGNED_V": UNALIGNED_V}


class Error(RuntimeError):
    pass


class Library:
    """libtegula.so. Loading counts the CPUs that this process may use, before anything binds its threads."""

    def __init__(self, path):
        self.c = CDLL(str(path))
        signatures = {  # name: (result, arguments)
            "tegula_abi_version": (c_int32, []),
            "tegula_last_error": (c_char_p, []),
            "tegula_capability": (c_int32, [c_void_p, c_char_p, POINTER(c_int64)]),
            "tegula_forward_args_init_sized": (c_int32, [POINTER(ForwardArgs), c_size_t]),
            "tegula_problem_init_sized": (c_int32, [POINTER(Problem), c_size_t]),
            "tegula_plan_info_init_sized": (c_int32, [POINTER(PlanInfo), c_size_t]),
            "tegula_describe_forward": (c_int32, [POINTER(ForwardArgs), POINTER(Problem)]),
            "tegula_cuda_device_init_sized": (c_int32, [POINTER(Device), c_size_t, c_int32]),
            "tegula_execution_init_sized": (c_int32, [POINTER(Execution), c_size_t]),
            "tegula_plan_create": (c_int32, [POINTER(Problem), POINTER(Device), POINTER(c_void_p)]),
            "tegula_prepare": (c_int32, [c_void_p]),
            "tegula_plan_destroy": (None, [c_void_p]),
            "tegula_plan_get_info": (c_int32, [c_void_p, POINTER(PlanInfo)]),
            "tegula_forward": (c_int32, [c_void_p, POINTER(ForwardArgs), POINTER(Execution)]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        if self.c.tegula_abi_version() != ABI_VERSION:
            raise Error(f"{path}: ABI version {self.c.tegula_abi_version()}, wanted {ABI_VERSION}")
        self.num_workers = self.capability("num_workers")

    def check(self, status):
        if status != OK:
            raise Error(self.c.tegula_last_error().decode())

    def capability(self, name):
        value = c_int64()
        self.check(self.c.tegula_capability(None, name.encode(), byref(value)))
        return value.value

    def cuda_device(self, index):
        device = Device()
        self.check(self.c.tegula_cuda_device_init_sized(device, ctypes.sizeof(Device), index))
        return device


class Forward:
    """o = attention(q, k, v) of PyTorch tensors [batch, tokens, heads, dim] with any strides; ragged ones are
    [tokens, heads, dim] beside cu_seqlens. A call runs the plan on the same tensors again. On a GPU it is prepared
    here, has its workspace, and queues itself on PyTorch's current stream."""

    def __init__(self, library, q, k, v, o, *, cu_seqlens=None, lse=None, sink=None, **problem):
        self.library = library
        self._tensors = [q, k, v, o, cu_seqlens, lse, sink]  # keeps their memory
        self._args = ForwardArgs()
        library.check(library.c.tegula_forward_args_init_sized(self._args, ctypes.sizeof(ForwardArgs)))
        for name, tensor in {"q": q, "k": k, "v": v, "o": o, "lse": lse, "sink": sink}.items():
            if tensor is not None:
                setattr(self._args, name, ctypes.pointer(Tensor.of(tensor)))
        if cu_seqlens is not None:
            index = ctypes.pointer(Index(Tensor.of(cu_seqlens)))
            self._args.cu_seqlens_q = self._args.cu_seqlens_k = index
        self._plan = c_void_p()
        wanted = Problem()
        library.check(library.c.tegula_problem_init_sized(wanted, ctypes.sizeof(Problem)))
        library.check(library.c.tegula_describe_forward(self._args, wanted))
        for name, value in problem.items():
            if name not in (field[0] for field in Problem._fields_):
                raise TypeError(f"tegula_problem has no {name}")
            setattr(wanted, name, value)
        device = library.cuda_device(q.device.index) if q.is_cuda else None
        library.check(library.c.tegula_plan_create(wanted, device, byref(self._plan)))
        self._reference = byref(self._args)
        self._forward = library.c.tegula_forward
        self._execution = self._gpu_execution(q) if q.is_cuda else None

    def _gpu_execution(self, q):
        import torch
        self.library.check(self.library.c.tegula_prepare(self._plan))
        self._workspace = torch.empty(max(1, self.info().scratch_bytes), dtype=torch.uint8, device=q.device)
        self._current_stream = lambda: torch.cuda.current_stream(q.device).cuda_stream
        execution = Execution()
        self.library.check(self.library.c.tegula_execution_init_sized(execution, ctypes.sizeof(Execution)))
        execution.workspace, execution.workspace_size = self._workspace.data_ptr(), self._workspace.numel()
        return execution

    def __call__(self):
        if self._execution is not None:
            self._execution.stream = self._current_stream()
        status = self._forward(self._plan, self._reference, self._execution)
        if status:
            self.library.check(status)

    def __del__(self):
        if getattr(self, "_plan", None):
            self.library.c.tegula_plan_destroy(self._plan)

    def info(self):
        info = PlanInfo()
        self.library.check(self.library.c.tegula_plan_info_init_sized(info, ctypes.sizeof(PlanInfo)))
        self.library.check(self.library.c.tegula_plan_get_info(self._plan, info))
        return info

    def implementation(self):
        return self.info().implementation.decode()
