/* SPDX-License-Identifier: Apache-2.0
 *
 * tegula: exact attention, tile by tile. The C ABI.
 *
 * What every operation means is stated once, in docs/contract.md; the comments here give shapes,
 * units and errors.
 *
 * Use:  fill an args structure with tensors  ->  tegula_describe_forward() reads shapes, types and
 * layout from it into a problem  ->  set the problem's mask, scale and splits  ->
 * tegula_plan_create()  ->  tegula_forward(), as often as you like with any tensors of the same
 * kind. A plan serves every layer and every step with the same maxima.
 *
 * Rules of the whole interface:
 *  - Every function returns a status; 0 is success. On failure outputs are untouched and
 *    tegula_last_error() names the argument and shows both values.
 *  - Structures begin with struct_size. The *_init functions set it and the defaults; fields added
 *    later mean "absent" at 0.
 *  - Tensors and index tensors are passed by pointer; NULL means absent. They are read during the
 *    call and never kept.
 *  - Strides are 64-bit, in elements, free (0 broadcasts an input), except that the last dimension
 *    has stride 1 (bias: also 0). Strides of dimensions of size <= 1 are ignored.
 *  - Any number of threads may call at once. The library never prints and never aborts.
 */
/* clang-format off: comments here are laid out by hand */
#ifndef TEGULA_TEGULA_H_
#define TEGULA_TEGULA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TEGULA_API __attribute__((visibility("default")))
#else
#define TEGULA_API
#endif

#define TEGULA_VERSION_MAJOR 0
#define TEGULA_VERSION_MINOR 1
#define TEGULA_VERSION_PATCH 0
/* Changes only when a program built against an older header can no longer run; it is the SONAME's
 * number. */
#define TEGULA_ABI_VERSION 1

/* tegula_NAME_init(tegula_NAME*) sets struct_size and the defaults. It passes the size that the
 * caller was compiled with, so that a newer library never writes past an older caller's structure;
 * other languages call tegula_NAME_init_sized themselves. */
#define TEGULA_DEFINE_INIT(type, argument)                                        \
  TEGULA_API tegula_status type##_init_sized(type* argument, size_t struct_size); \
  static inline tegula_status type##_init(type* argument) {                       \
    return type##_init_sized(argument, sizeof *argument);                         \
  }

/* ---- Status ---------------------------------------------------------------------------------- */

typedef enum tegula_status {
  TEGULA_OK = 0,
  TEGULA_INVALID_ARGUMENT = 1, /* a value, shape, stride or length is wrong (Python: ValueError) */
  TEGULA_WRONG_TYPE = 2,       /* a dtype, or the kind of a tensor, is wrong (TypeError) */
  TEGULA_UNSUPPORTED = 3,      /* legal, refused by name: contract.md, 2 (NotImplementedError) */
  TEGULA_OUT_OF_MEMORY = 4,    /* no scratch, or the workspace given is too small (RuntimeError) */
  TEGULA_DEVICE_ERROR = 5,     /* a driver, compiler or device failed (RuntimeError) */
  TEGULA_INTERNAL_ERROR = 6    /* a fault of this library (RuntimeError) */
} tegula_status;

/* Text of the calling thread's last failure: one line, valid until that thread's next call. "" if
 * there was none. */
TEGULA_API const char* tegula_last_error(void);
/* "invalid argument", ... ; never NULL. */
TEGULA_API const char* tegula_status_name(int32_t status);

/* ---- Types and tensors ----------------------------------------------------------------------- */

typedef enum tegula_dtype {
  TEGULA_DTYPE_NONE = 0, /* absent, or "the default" where a default exists */
  TEGULA_F32 = 1,
  TEGULA_F16 = 2,
  TEGULA_BF16 = 3,
  TEGULA_E4M3 = 4, /* OCP e4m3fn: no infinity, largest 448 */
  TEGULA_E5M2 = 5,
  TEGULA_BOOL = 6,
  TEGULA_I32 = 7,
  TEGULA_I64 = 8
} tegula_dtype;

/* "f32", "bf16", ...; "none" for TEGULA_DTYPE_NONE, "?" for anything else. */
TEGULA_API const char* tegula_dtype_name(int32_t dtype);
/* Bytes of one element, 0 for TEGULA_DTYPE_NONE and unknown values. */
TEGULA_API size_t tegula_dtype_size(int32_t dtype);

/* DLPack's numbers. */
typedef enum tegula_device_kind { TEGULA_CPU = 1, TEGULA_CUDA = 2 } tegula_device_kind;

#define TEGULA_MAX_DIMS 5

/* Mirrors DLTensor (dlpack.h), with shape and strides inline. type_code: DLPack's (0 int, 1 uint, 2
 * float, 4 bfloat, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2); type_lanes is 1. data may be NULL if
 * the tensor has no element. */
typedef struct tegula_tensor {
  void* data; /* CUDA: memory of that device (managed memory too), not of the host */
  int32_t device_kind; /* tegula_device_kind */
  int32_t device_index;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int32_t ndim;
  int64_t shape[TEGULA_MAX_DIMS];
  int64_t strides[TEGULA_MAX_DIMS]; /* in elements */
  uint64_t byte_offset;             /* added to data */
} tegula_tensor;

/* Fills *tensor with a row-major CPU tensor. shape holds ndim entries. */
TEGULA_API tegula_status tegula_tensor_init(tegula_tensor* tensor, void* data, int32_t dtype,
                                            int32_t ndim, const int64_t* shape);

/* An index tensor (int32; slot_mapping int64), on the device of the call's tensors. host: an
 * optional packed row-major copy in host memory of a device tensor, read during the call, which lets
 * the checks see the values (else a bad one changes the result of its own sequence alone, and the
 * error word); ignored for CPU tensors, which are seen anyway. */
typedef struct tegula_index {
  tegula_tensor tensor;
  const void* host;
} tegula_index;

/* ---- Problem: what a call is, without its data ----------------------------------------------- */

typedef enum tegula_operation {
  TEGULA_OP_FORWARD = 0,
  TEGULA_OP_BACKWARD = 1, /* refused by name until its release */
  TEGULA_OP_APPEND_KV = 2,
  TEGULA_OP_COMBINE = 3
} tegula_operation;

typedef enum tegula_layout {
  TEGULA_DENSE = 0,  /* [batch, seqlen, heads, dim] */
  TEGULA_RAGGED = 1, /* [total, heads, dim] with cu_seqlens [batch + 1] */
  TEGULA_PAGED = 2   /* [num_pages, page_size, heads, dim] with a page table (k and v only) */
} tegula_layout;

/* Which optional operands the calls of a plan bring. */
#define TEGULA_HAS_LSE (1u << 0)
#define TEGULA_HAS_SEQUSED_Q (1u << 1)
#define TEGULA_HAS_SEQUSED_K (1u << 2)
#define TEGULA_HAS_LEFTPAD_K (1u << 3)
#define TEGULA_HAS_SINK (1u << 4)
#define TEGULA_HAS_ALIBI (1u << 5)
#define TEGULA_HAS_BIAS (1u << 6)
#define TEGULA_HAS_DESCALE_Q (1u << 7)
#define TEGULA_HAS_DESCALE_K (1u << 8)
#define TEGULA_HAS_DESCALE_V (1u << 9)
#define TEGULA_HAS_NEW_TOKENS (1u << 10)  /* seqlen_new or cu_seqlens_new is added to seqused_k */
#define TEGULA_HAS_PAGE_INDPTR (1u << 11) /* the page table has ragged rows */

/* CUDA: operands below the class that the tensor copy engine (TMA) moves: an address or a stride
 * (of a dimension above 1) that is no multiple of 16 bytes, or a stride of 0 or of 2^40 bytes and
 * more. Other instructions load them. */
#define TEGULA_UNALIGNED_Q (1u << 0)
#define TEGULA_UNALIGNED_K (1u << 1)
#define TEGULA_UNALIGNED_V (1u << 2)
#define TEGULA_UNALIGNED_O (1u << 3)

/* The description of a call: maxima of its shapes, types, mask, layout. tegula_describe_forward()
 * fills everything that tensors tell; the caller sets the rest. Sizes are maxima: a call may have
 * fewer sequences, tokens, pages or shorter sequences. */
typedef struct tegula_problem {
  size_t struct_size;
  int32_t operation;  /* tegula_operation */
  int32_t q_dtype;    /* tegula_dtype: f32, f16, bf16, e4m3, e5m2 */
  int32_t kv_dtype;   /* k and v have one dtype */
  int32_t o_dtype;    /* f32, f16, bf16; TEGULA_DTYPE_NONE: q's, bf16 for 8-bit q */
  int32_t bias_dtype; /* q's, f32 or bool (true = visible); TEGULA_DTYPE_NONE: no bias */
  int32_t layout_q;   /* tegula_layout: dense or ragged */
  int32_t layout_k;   /* dense, ragged or paged */
  uint32_t operands;  /* TEGULA_HAS_* */
  int64_t batch;      /* sequences */
  int64_t seqlen_q;   /* dense: the tensor's; ragged: longest, 0 = unknown (total_q is the bound) */
  /* Dense: the tensor's; ragged: longest, 0 = unknown; paged: capacity of a row of the table. With
   * page_indices describe gives that of all rows together, and the caller may set the longest. */
  int64_t seqlen_k;
  int64_t total_q;    /* ragged q: rows of the tensor, else 0 */
  int64_t total_k;    /* ragged k: rows of the tensor, else 0 */
  int64_t num_heads_q;
  int64_t num_heads_kv; /* divides num_heads_q */
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t num_pages; /* paged, else 0 */
  int64_t page_size; /* paged, else 0 */

  /* Set by the caller. */

  /* Longest used lengths; 0 = not known. On the CPU a longer sequence is an error. */
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  int32_t causal;          /* 1: bounds window_right by 0; a positive one beside it is refused */
  int32_t fast_accumulate; /* CUDA, 8-bit only: no two-level accumulation (docs/numerics.md) */
  /* Keys p - window_left ... p + window_right are visible, inclusive, with p = i + seqlen_k -
   * seqlen_q (bottom-right alignment); -1 = unlimited, the default. "A window of W tokens" is
   * window_left = W - 1. */
  int64_t window_left;
  int64_t window_right;
  /* c > 0: also floor((j - leftpad) / c) = floor((p - leftpad) / c); 0 = none. */
  int64_t attention_chunk;
  double softmax_scale; /* finite, > 0; 0 = head_dim^-1/2 */
  double softcap;       /* s <- softcap * tanh(s / softcap); 0 = none */
  int64_t num_splits;   /* 0 = automatic, 1 = none, n = n equal ranges of key blocks, <= 1024 */
  /* Tokens per split, rounded up to 64: a sequence's bits then depend on itself alone. 0 = off.
   * Refused together with num_splits. */
  int64_t fixed_split;

  /* TEGULA_UNALIGNED_*; set by describe for CUDA tensors. A call with more bits than its plan's
   * problem is refused; one with fewer is fine. */
  uint32_t unaligned;
} tegula_problem;

/* ---- Device and execution -------------------------------------------------------------------- */

/* CPU instruction sets with a kernel family of their own. */
typedef enum tegula_isa {
  TEGULA_ISA_AUTO = 0,
  TEGULA_ISA_SCALAR = 1,
  TEGULA_ISA_AVX2 = 2,       /* AVX2, FMA, F16C */
  TEGULA_ISA_AVX512 = 3,     /* F, BW, DQ, VL */
  TEGULA_ISA_AVX512BF16 = 4, /* also BF16, VBMI, VNNI */
  TEGULA_ISA_AMX = 5,        /* also AMX TILE, BF16 */
  TEGULA_ISA_AMX_MODEL = 6   /* the AMX kernels on tiles modelled in plain C++: for tests, slow,
                              * on every machine; never chosen by itself */
} tegula_isa;

/* "scalar", "avx2", ...; "auto"; "?" for anything else. */
TEGULA_API const char* tegula_isa_name(int32_t isa);

/* Plain data for planning.
 * CPU: tegula_device_init() describes this machine's; TEGULA_ISA in the environment (a name of
 * tegula_isa_name) chooses among the instruction sets that it has, TEGULA_NUM_THREADS the number of
 * workers; both are read once.
 * GPU: tegula_cuda_device_init() describes the index-th that the CUDA driver shows. Filled by hand
 * (kind, index, compute_capability, num_sms), a plan can be made on a machine without that GPU. */
typedef struct tegula_device {
  size_t struct_size;
  int32_t kind; /* tegula_device_kind */
  int32_t index; /* CUDA: the driver's number, CUDA_VISIBLE_DEVICES applied, as the runtime's */
  int32_t isa; /* CPU: tegula_isa; AUTO: the committed table decides by vendor, family and dtype */
  int32_t num_workers; /* CPU: tasks that may run at once; scratch is sized by it. >= 1 */
  const void* tuning;  /* reserved for a calibrated table; must be NULL */
  /* CUDA: 10 * major + minor (90: sm_90). 0: asked of the driver, and num_sms with it. */
  int32_t compute_capability;
  int32_t num_sms; /* CUDA: multiprocessors, >= 1 */
} tegula_device;

TEGULA_DEFINE_INIT(tegula_device, device)

/* Describes a GPU. Fails with TEGULA_DEVICE_ERROR and one line of text if there is no driver or no
 * such GPU. */
TEGULA_API tegula_status tegula_cuda_device_init_sized(tegula_device* device, size_t struct_size,
                                                       int32_t index);
static inline tegula_status tegula_cuda_device_init(tegula_device* device, int32_t index) {
  return tegula_cuda_device_init_sized(device, sizeof *device, index);
}

/* A task of a parallel loop. worker identifies the caller's scratch: 0 <= worker < the device's
 * num_workers. */
typedef void (*tegula_task_fn)(void* argument, int64_t task, int32_t worker);

/* Runs fn(argument, task, worker) for every task in [0, count), in any order, at most one at a time
 * per worker, and returns when all are done. Running them all inline as worker 0 is legal.
 * num_workers: what the executor may use; a call whose plan allows fewer is refused. */
typedef struct tegula_executor {
  size_t struct_size;
  void* context;
  void (*parallel_for)(void* context, int64_t count, tegula_task_fn fn, void* argument);
  int32_t num_workers;
} tegula_executor;

TEGULA_DEFINE_INIT(tegula_executor, executor)

/* How to run one call. NULL in its place: everything by default.
 * CUDA: the call returns when its work is queued on the stream; the tensors, and the workspace if it
 * is given, stay in use until the stream has passed it. Context and device of the calling thread are
 * unchanged. Under stream capture the plan must be prepared (tegula_prepare) and, if it needs
 * scratch, the workspace given. */
typedef struct tegula_execution {
  size_t struct_size;
  const tegula_executor* executor; /* CPU; NULL: the library's thread pool */
  void* stream;                    /* CUDA stream; NULL: the default stream of the plan's device */
  void* workspace;       /* on the plan's device, 16-byte aligned; NULL: from the process-wide pool
                          * (trim_memory) */
  size_t workspace_size; /* at least what the plan tells, if workspace is given */
  /* CUDA, on the plan's device: receives, by atomicMax, 1 + the index of a sequence with bad indices
   * (0 stays: none); NULL: not wanted. */
  int32_t* error_word;
} tegula_execution;

TEGULA_DEFINE_INIT(tegula_execution, execution)

/* ---- Forward --------------------------------------------------------------------------------- */

/* Tensors of one forward: B sequences, heads Hq and Hkv, head_dim D, head_dim_v Dv.
 *   q             [B, seqlen_q, Hq, D], or ragged [total_q, Hq, D] with cu_seqlens_q
 *   k             [B, seqlen_k, Hkv, D], or ragged [total_k, Hkv, D] with cu_seqlens_k,
 *                 or pages [num_pages, page_size, Hkv, D]
 *   v             as k, with Dv
 *   o             as q, with Dv (output)
 *   lse           f32 [B, Hq, seqlen_q] or ragged [Hq, total_q], natural log (output);
 *                 NULL: not wanted
 *   cu_seqlens_*  [B + 1], from 0, not decreasing, at most the tensor's rows
 *   seqused_*     [B], at most the slot's length; o and lse of rows past seqused_q are untouched
 *   leftpad_k     [B], keys before it are unseen
 *   page_table    [B, max_pages], any row stride; or page_indices [total_pages] with page_indptr
 *                 [B + 1]. seqused_k is required then. Entries past ceil(seqlen / page_size) are
 *                 never read.
 *   seqlen_new    or cu_seqlens_new [B + 1]: added to seqused_k, so that tegula_append_kv and the
 *                 forward after it take the same lengths
 *   sink          f32 [Hq]
 *   alibi_slopes  f32 [Hq] or [B, Hq]
 *   bias          [B, Hq, seqlen_q, seqlen_k]; ragged q or k: the maximum in place of the length;
 *                 any stride 0
 *   descale_*     f32 [1], [Hkv] or [B, Hkv], any strides; real value = stored * descale (8-bit
 *                 operands only) */
typedef struct tegula_forward_args {
  size_t struct_size;
  const tegula_tensor* q;
  const tegula_tensor* k;
  const tegula_tensor* v;
  const tegula_tensor* o;
  const tegula_tensor* lse;
  const tegula_index* cu_seqlens_q;
  const tegula_index* cu_seqlens_k;
  const tegula_index* seqused_q;
  const tegula_index* seqused_k;
  const tegula_index* leftpad_k;
  const tegula_index* page_table;
  const tegula_index* page_indices;
  const tegula_index* page_indptr;
  int64_t seqlen_new;
  const tegula_index* cu_seqlens_new;
  const tegula_tensor* sink;
  const tegula_tensor* alibi_slopes;
  const tegula_tensor* bias;
  const tegula_tensor* descale_q;
  const tegula_tensor* descale_k;
  const tegula_tensor* descale_v;
} tegula_forward_args;

TEGULA_DEFINE_INIT(tegula_forward_args, args)
TEGULA_DEFINE_INIT(tegula_problem, problem)

/* Fills operation, types, layouts, operands and sizes of *problem from the tensors; leaves what the
 * caller sets alone. */
TEGULA_API tegula_status tegula_describe_forward(const tegula_forward_args* args,
                                                 tegula_problem* problem);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Immutable, shareable between threads, independent of any stream. */
typedef struct tegula_plan tegula_plan;

/* What was decided, as numbers. */
typedef struct tegula_plan_info {
  size_t struct_size;
  const char* implementation; /* lives as long as the plan */
  int32_t device_kind;
  int32_t isa; /* tegula_isa, CPU */
  int32_t num_workers;
  int64_t tile_m;       /* packed query rows (tokens x qheads_per_kvhead) of a work item */
  int64_t tile_n;       /* keys of a block */
  int64_t num_splits;   /* the most ranges of keys that a sequence is cut into */
  size_t scratch_bytes; /* any content, any call; all that a CPU call uses besides a few hundred
                           bytes a sequence */
  size_t state_bytes;   /* 0 on the CPU */
} tegula_plan_info;

TEGULA_DEFINE_INIT(tegula_plan_info, info)

/* Decides how calls like *problem run on *device (NULL: this machine's CPU). Pure and cheap;
 * nothing is compiled or measured. */
TEGULA_API tegula_status tegula_plan_create(const tegula_problem* problem,
                                            const tegula_device* device, tegula_plan** plan);
TEGULA_API void tegula_plan_destroy(tegula_plan* plan); /* NULL is fine */
TEGULA_API tegula_status tegula_plan_get_info(const tegula_plan* plan, tegula_plan_info* info);
/* Compiles and loads what the plan may need (CUDA); nothing to do on the CPU. Else the first forward
 * does. */
TEGULA_API tegula_status tegula_prepare(const tegula_plan* plan);
/* The same for a server's start: makes and prepares a plan of each of `count` problems, so that
 * later plans like them find their kernels loaded. The first failure ends it; its text names the
 * problem. */
TEGULA_API tegula_status tegula_warm_up(const tegula_problem* const* problems, size_t count,
                                        const tegula_device* device);
/* Text for people: the chosen implementation, tiles, splits, workspace, and why each earlier
 * candidate was refused. Writes at most size bytes including the final 0; *needed (may be NULL)
 * receives the size of the whole text, final 0 included. */
TEGULA_API tegula_status tegula_explain(const tegula_plan* plan, char* text, size_t size,
                                        size_t* needed);

/* o, lse = attention(q, k, v) as the plan's problem says. execution may be NULL. */
TEGULA_API tegula_status tegula_forward(const tegula_plan* plan, const tegula_forward_args* args,
                                        const tegula_execution* execution);

/* ---- Append to a cache ----------------------------------------------------------------------- */

typedef enum tegula_rotary_style {
  TEGULA_ROTARY_HALF_SPLIT = 0, /* pairs (i, i + rotary_dim / 2) */
  TEGULA_ROTARY_INTERLEAVED = 1 /* pairs (2 i, 2 i + 1) */
} tegula_rotary_style;

/* Writes new K/V rows into a cache (contract.md, 5).
 *   k_new, v_new  [B, seqlen_new, Hkv, D or Dv], or ragged [total_new, Hkv, D or Dv] with
 *                 cu_seqlens_new [B + 1]
 *   k_cache, ...  [B, capacity, Hkv, D or Dv], or pages [num_pages, page_size, Hkv, D or Dv] with
 *                 page_table (or page_indices and page_indptr) or slot_mapping
 *   seqused_k     [B], the lengths *before*; never modified. Row t of sequence b goes to position
 *                 seqused_k[b] + t. May be absent with slot_mapping, if no rotary position is
 *                 derived from it.
 *   slot_mapping  int64 [total_new]: slot = page * page_size + offset, negative = skip the row
 *   cos, sin      [max_pos, rotary_dim / 2], f32 or k_new's dtype, at position seqused_k[b] + t, or
 *                 positions int32 [total_new]
 *   q, q_out      optional: [B, seqlen_new, Hq, D] or [total_new, Hq, D], rotated with the same
 *                 positions into q_out (which may have q's address: in place)
 *   descale_*     f32 [1], [Hkv] or [B, Hkv]: an 8-bit cache stores x / descale, rounded to nearest
 *                 even and saturated
 * Types: the cache has the new rows' dtype, or is f16/bf16/f32/8-bit of a 16- or 32-bit row
 * (rounded once). */
typedef struct tegula_append_kv_args {
  size_t struct_size;
  const tegula_tensor* k_new;
  const tegula_tensor* v_new;
  const tegula_tensor* k_cache;
  const tegula_tensor* v_cache;
  const tegula_index* cu_seqlens_new;
  const tegula_index* seqused_k;
  const tegula_index* page_table;
  const tegula_index* page_indices;
  const tegula_index* page_indptr;
  const tegula_index* slot_mapping;
  const tegula_index* positions;
  const tegula_tensor* cos;
  const tegula_tensor* sin;
  int32_t rotary_style; /* tegula_rotary_style */
  const tegula_tensor* q;
  const tegula_tensor* q_out;
  const tegula_tensor* descale_k;
  const tegula_tensor* descale_v;
} tegula_append_kv_args;

TEGULA_DEFINE_INIT(tegula_append_kv_args, args)
TEGULA_API tegula_status tegula_append_kv(const tegula_append_kv_args* args,
                                          const tegula_execution* execution);

/* ---- Combine partial results ----------------------------------------------------------------- */

/* Merges partial results of the same rows over disjoint keys (contract.md, 6).
 *   o_partial    [num_splits, B, seqlen_q, Hq, Dv] f32, f16 or bf16;
 *                ragged: [num_splits, total_q, Hq, Dv]
 *   lse_partial  f32 [num_splits, B, Hq, seqlen_q]; ragged: [num_splits, Hq, total_q].
 *                -inf or +inf = empty
 *   o            [B, seqlen_q, Hq, Dv] or [total_q, Hq, Dv], f32, f16 or bf16
 *   lse          f32 [B, Hq, seqlen_q] or [Hq, total_q]; NULL: not wanted
 *   sink         f32 [Hq], optional; enters once, here */
typedef struct tegula_combine_args {
  size_t struct_size;
  const tegula_tensor* o_partial;
  const tegula_tensor* lse_partial;
  const tegula_tensor* o;
  const tegula_tensor* lse;
  const tegula_tensor* sink;
} tegula_combine_args;

TEGULA_DEFINE_INIT(tegula_combine_args, args)
TEGULA_API tegula_status tegula_combine(const tegula_combine_args* args,
                                        const tegula_execution* execution);

/* ---- The library itself ---------------------------------------------------------------------- */

/* MAJOR * 10000 + MINOR * 100 + PATCH of the library that runs (the macros above tell what was
 * compiled against). */
TEGULA_API int32_t tegula_version(void);
TEGULA_API int32_t tegula_abi_version(void);

/* What this build and *device (NULL: this machine's CPU) can do, by name; unknown names are an
 * error that lists the known ones.
 *   "isa.scalar" "isa.avx2" "isa.avx512" "isa.avx512bf16" "isa.amx"
 *   "isa.amx_model"
 *                       bit 0: built in, bit 1: this machine runs it
 *   "cuda"              1 if this machine has a CUDA driver and a GPU that the library serves
 *   "cuda.devices"      GPUs that the driver shows, served or not; 0 without a driver
 *   "forward" "append_kv" "combine" "backward"
 *                       1 if the operation exists on the device
 *   "head_dim.max" "head_dim_v.max" "num_splits.max"
 *                       of forward on the device; 0 where it does not exist
 *   "num_workers"       of the library's thread pool */
TEGULA_API tegula_status tegula_capability(const tegula_device* device, const char* name,
                                           int64_t* value);

/* Receives what the library has to say (fallbacks and their reasons); never errors, which are
 * statuses. NULL turns it off, which is the default. Called on the calling thread, possibly by
 * several at once. */
typedef void (*tegula_log_fn)(void* context, const char* message);
TEGULA_API void tegula_set_log_callback(tegula_log_fn callback, void* context);

/* Frees idle scratch of the process-wide pool and returns it to the system; *freed (may be NULL)
 * receives the bytes. */
TEGULA_API tegula_status tegula_trim_memory(size_t* freed);

#undef TEGULA_DEFINE_INIT

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TEGULA_TEGULA_H_ */
