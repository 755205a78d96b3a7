// SPDX-License-Identifier: Apache-2.0
// Field reports on a GPU, those of the forward: B01, B02, B04, B06 to B09, B12, B14, B20. B15 and
// B16 are about checks that know no device (tests/unit/field_reports, fake_calls_test.cc); pages,
// splits, 8-bit caches and the backward wait for their kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/device/gpu_util.hpp"

namespace tegula::cases {
namespace {

class GpuReports : public GpuTest {};

TEST_F(GpuReports, B01_VarlenWithEmptyQueries) {
  for (const EmptySequences& report : empty_sequences()) {
    for (const bool causal : {false, true}) {
      Case item = ragged(plain(TEGULA_BF16, 0, 0, report.heads_q, report.heads_kv, report.dim),
                         report.lens_q, report.lens_k);
      item.causal = causal;
      EXPECT_EQ(check_on(*gpu_, item, [](tegula_problem& problem) { problem.max_seqlen_q = 1; }),
                "");
    }
  }
  for (const auto& [batch, q, k] :
       {std::tuple<int, int, int>{2, 3, 0}, {2, 0, 3}, {2, 0, 0}, {0, 3, 3}}) {
    Case item = plain(TEGULA_F16, q, k, 4, 2, 64);
    item.seqlens_q.assign(static_cast<std::size_t>(batch), q);
    item.seqlens_k.assign(static_cast<std::size_t>(batch), k);
    EXPECT_EQ(check_on(*gpu_, item), "") << batch << " " << q << " " << k;
  }
}

void expect_empty_row(const ForwardData& data, std::int64_t i) {
  for (std::int64_t h = 0; h < data.item().num_heads_q; ++h) {
    EXPECT_EQ(data.lse(0, i, h), -std::numeric_limits<double>::infinity());
    for (std::int64_t d = 0; d < data.item().head_dim_v; ++d) EXPECT_EQ(data.o(0, i, h, d), 0.0);
  }
}

TEST_F(GpuReports, B02_RowsWithoutKeys) {
  Case item = plain(TEGULA_BF16, 5, 2, 4, 2, 64);
  item.causal = true;
  ForwardData data(item, Placement::kAligned, kPoison);
  EXPECT_EQ(check_on(*gpu_, data), "");
  for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(data, i);
  EXPECT_TRUE(std::isfinite(data.lse(0, 3, 0)) && std::isfinite(data.lse(0, 4, 0)));
  item.causal = false;
  item.window_left = item.window_right = 0;
  ForwardData window(item, Placement::kAligned, kPoison);
  EXPECT_EQ(check_on(*gpu_, window), "");
  for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(window, i);
  item.seqlens_k = {0};
  ForwardData none(item, Placement::kAligned, kPoison);
  EXPECT_EQ(check_on(*gpu_, none), "");
  for (std::int64_t i = 0; i < 5; ++i) expect_empty_row(none, i);
  Case padded = plain(TEGULA_F16, 3, 40, 2, 1, 64);
  padded.leftpad_k = {40};
  ForwardData left(padded, Placement::kAligned, kPoison);
  EXPECT_EQ(check_on(*gpu_, left), "");
  for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(left, i);
}

// Operands by hand: bf16 in device memory.
struct DeviceTensor {
  DeviceTensor(Gpu& gpu, GpuStream& stream, const std::vector<std::uint16_t>& values,
               std::initializer_list<std::int64_t> shape)
      : block(gpu, values.size() * 2, Placement::kAligned) {
    EXPECT_EQ(tegula_tensor_init(&tensor, block.data(), TEGULA_BF16,
                                 static_cast<std::int32_t>(shape.size()), shape.begin()),
              TEGULA_OK);
    tensor.device_kind = TEGULA_CUDA;
    stream.upload(block, values.data());
    stream.synchronize();
  }
  DeviceBlock block;
  tegula_tensor tensor{};
};

TEST_F(GpuReports, B04_MoreThan65535BatchesAndHeads) {
  const struct {
    std::int64_t batch, heads, rows;
  } sizes[] = {{65535, 1, 16}, {65536, 1, 16}, {65537, 1, 16}, {1, 70000, 4}};
  constexpr std::int64_t kDim = 16;
  for (const auto& size : sizes) {
    // q = 0: the mean of v, which is one number for each batch and head.
    const auto count = static_cast<std::size_t>(size.batch * size.rows * size.heads * kDim);
    std::vector<std::uint16_t> zeros(count), v(count);
    const auto number = [&](std::size_t element) {
      const auto row = static_cast<std::int64_t>(element) / kDim;
      return static_cast<double>((row / size.heads / size.rows + row % size.heads) % 251 + 1);
    };
    const auto encode = [](double x) {
      return static_cast<std::uint16_t>(oracle::encode(oracle::Format::kBf16, x));
    };
    for (std::size_t n = 0; n < count; ++n) v[n] = encode(number(n));
    GpuStream stream(*gpu_);
    const DeviceTensor q(*gpu_, stream, zeros, {size.batch, size.rows, size.heads, kDim});
    const DeviceTensor values(*gpu_, stream, v, {size.batch, size.rows, size.heads, kDim});
    const DeviceTensor o(*gpu_, stream, zeros, {size.batch, size.rows, size.heads, kDim});
    tegula_forward_args args;
    tegula_forward_args_init(&args);
    args.q = args.k = &q.tensor;
    args.v = &values.tensor;
    args.o = &o.tensor;
    tegula_problem problem;
    tegula_problem_init(&problem);
    ASSERT_EQ(tegula_describe_forward(&args, &problem), TEGULA_OK) << tegula_last_error();
    PlanPointer plan;
    ASSERT_EQ(make_plan(*gpu_, problem, plan), "");
    tegula_execution execution;
    tegula_execution_init(&execution);
    execution.stream = stream.get();
    ASSERT_EQ(tegula_forward(plan.get(), &args, &execution), TEGULA_OK) << tegula_last_error();
    std::vector<std::uint16_t> got(count);
    stream.download(got.data(), o.block);
    stream.synchronize();
    const auto wrong = std::mismatch(got.begin(), got.end(), v.begin());
    EXPECT_TRUE(wrong.first == got.end()) << "batch " << size.batch << ", heads " << size.heads
                                          << ": element " << wrong.first - got.begin();
  }
}

// v = identity: the entries of o that are not 0 are the visible keys.
TEST_F(GpuReports, B06_WindowEdges) {
  constexpr std::int64_t kSize = 40;
  const std::pair<std::int64_t, std::int64_t> windows[] = {
      {7, 0}, {0, 0}, {0, 3}, {-1, 0}, {3, -1}};
  for (const auto& [left, right] : windows) {
    for (const bool causal : {false, true}) {
      if (causal && right > 0) continue;
      for (const std::int64_t rows : {kSize, kSize / 2, kSize + 9}) {
        Case item = plain(TEGULA_BF16, rows, kSize, 1, 1, kSize);
        item.window_left = left;
        item.window_right = right;
        item.causal = causal;
        item.values = Values::kZeroQ;
        ForwardData data(item, Placement::kAligned, kPoison);
        for (std::int64_t j = 0; j < kSize; ++j) {
          if (std::isnan(data.v.get(0, j, 0, 0))) continue;  // no row sees it
          for (std::int64_t d = 0; d < kSize; ++d) data.v.set(j == d ? 1.0 : 0.0, 0, j, 0, d);
        }
        ASSERT_EQ(run_on(*gpu_, data), "");
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::int64_t p = i + kSize - rows;
          for (std::int64_t j = 0; j < kSize; ++j) {
            const bool seen = (left < 0 || j >= p - left) &&
                              ((right < 0 && !causal) || j <= p + std::max<std::int64_t>(right, 0));
            EXPECT_EQ(data.o(0, i, 0, j) != 0.0, seen)
                << left << "," << right << " causal " << causal << " row " << i << " key " << j;
          }
        }
      }
    }
  }
}

TEST_F(GpuReports, B07_SoftcapSaturates) {
  const double scores[] = {1, 100, 3000, 4400, 5000, 1e4, -1e4, 1e30};
  const double factors[] = {1.0, 0.5, -1.0, 0.0};
  Case item = plain(TEGULA_BF16, 8, 4, 1, 1, 8);
  item.softcap = 50.0;
  item.softmax_scale = 1.0;
  item.o_dtype = TEGULA_F32;
  ForwardData data(item, Placement::kAligned, kPoison);
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t d = 0; d < 8; ++d) data.q.set(d == 0 ? scores[i] : 0.0, 0, i, 0, d);
  }
  for (std::int64_t j = 0; j < 4; ++j) {
    for (std::int64_t d = 0; d < 8; ++d) data.k.set(d == 0 ? factors[j] : 0.0, 0, j, 0, d);
  }
  EXPECT_EQ(check_on(*gpu_, data), "");
  for (std::int64_t i = 0; i < 8; ++i) {
    const double q = data.q.get(0, i, 0, 0);
    double sum = 0.0, o = 0.0;
    for (std::int64_t j = 0; j < 4; ++j) {
      const double p = std::exp(50.0 * std::tanh(q * factors[j] / 50.0) - 50.0);
      sum += p;
      o += p * data.v.get(0, j, 0, 0);
    }
    EXPECT_TRUE(std::isfinite(data.lse(0, i, 0)));
    EXPECT_NEAR(data.o(0, i, 0, 0), o / sum, 2e-2) << scores[i];
  }
}

TEST_F(GpuReports, B08_EveryHeadDim) {
  for (std::int64_t dim = 8; dim <= 256; dim += 8) {
    Case item = plain(dim % 16 == 0 ? TEGULA_BF16 : TEGULA_F16, 70, 90, 2, 1, dim);
    item.head_dim_v = dim % 3 == 0 ? 264 - dim : dim;
    item.causal = true;
    ASSERT_EQ(check_on(*gpu_, item), "")
        << "dense, head_dim " << dim << ", head_dim_v " << item.head_dim_v;
    ASSERT_EQ(check_on(*gpu_, ragged(item, {70, 3}, {90, 5})), "") << "ragged, head_dim " << dim;
  }
  for (const std::int64_t dim : {1, 7, 20, 260, 264, 512}) {
    Case item = plain(TEGULA_BF16, 3, 5, 1, 1, dim);
    EXPECT_NE(check_on(*gpu_, item).find(std::to_string(dim)), std::string::npos) << dim;
  }
}

TEST_F(GpuReports, B09_GroupSizes) {
  for (const auto& [heads_q, heads_kv] : kGroups) {
    for (const std::int64_t rows : {1, 17}) {
      Case item = plain(TEGULA_BF16, rows, 33, heads_q, heads_kv, 64);
      item.values = Values::kHeads;
      ForwardData data(item, Placement::kAligned, kPoison);
      EXPECT_EQ(check_on(*gpu_, data), "");
      for (std::int64_t h = 0; h < heads_q; ++h) {
        const auto head_kv = static_cast<double>(h / (heads_q / heads_kv));
        EXPECT_NEAR(data.o(0, rows - 1, h, 63), head_kv + 1.0, 0.05) << heads_q << "/" << heads_kv;
      }
    }
  }
}

TEST_F(GpuReports, B12_SinkInTheDenominator) {
  const struct {
    std::int64_t rows, keys;
    bool causal;
    std::int64_t window_left;
  } shapes[] = {{9, 9, true, -1}, {1, 70, false, -1}, {20, 20, true, 4}, {1, 9, true, -1}};
  for (const double sink : {-5.0, 0.0, 2.0, 20.0}) {
    for (const auto& shape : shapes) {
      Case item = plain(TEGULA_BF16, shape.rows, shape.keys, 4, 2, 64);
      item.o_dtype = TEGULA_F32;
      item.values = Values::kZeroQ;
      item.sink = true;
      item.causal = shape.causal;
      item.window_left = shape.window_left;
      ForwardData data(item, Placement::kAligned, kPoison);
      for (std::int64_t h = 0; h < 4; ++h) data.sink.set(sink, h);
      ASSERT_EQ(check_on(*gpu_, data), "");
      for (std::int64_t i = 0; i < shape.rows; ++i) {
        std::int64_t n = shape.causal ? i + shape.keys - shape.rows + 1 : shape.keys;
        if (shape.window_left >= 0) n = std::min(n, shape.window_left + 1);
        const auto keys = static_cast<double>(n);
        EXPECT_NEAR(data.o(0, i, 3, 5), keys / (keys + std::exp(sink)), 1e-3);
        EXPECT_NEAR(data.lse(0, i, 3), std::log(keys + std::exp(sink)), 1e-3);
      }
    }
  }
}

// The call waits for what its stream does before it, and is done before what the stream does next.
TEST_F(GpuReports, B14_FollowsItsStream) {
  Case item = plain(TEGULA_BF16, 300, 300, 8, 8, 128);
  item.causal = true;
  ForwardData data(item, Placement::kAligned, kPoison);
  ASSERT_EQ(check_on(*gpu_, data), "");
  const std::vector<std::byte> bits = data.used_bits();

  data.refill_outputs(kPoison);
  DeviceForward device(*gpu_, data, Placement::kAligned);
  PlanPointer plan;
  ASSERT_EQ(plan_call(*gpu_, data, device, plan), "");
  ASSERT_EQ(tegula_prepare(plan.get()), TEGULA_OK) << tegula_last_error();
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.stream = device.stream().get();

  const cuda::Driver& driver = gpu_->driver();
  const DeviceBlock busy(*gpu_, std::size_t{1} << 30, Placement::kAligned);
  const auto queue_long_work = [&] {
    for (int n = 0; n < 20; ++n) device.stream().fill(busy, n);
  };
  const auto q = reinterpret_cast<cuda::CUdeviceptr>(device.args().q->data);
  const std::size_t bytes = data.q.memory.size();
  const DeviceBlock kept(*gpu_, bytes, Placement::kAligned);
  cuda::CUcontext before = nullptr, after = nullptr;
  check_gpu(driver.cuCtxGetCurrent(&before), "cuCtxGetCurrent");
  {
    const GpuScope scope(*gpu_);
    check_gpu(driver.cuMemcpyDtoDAsync_v2(kept.address(), q, bytes, device.stream().get()), "copy");
    check_gpu(driver.cuMemsetD8Async(q, 0xff, bytes, device.stream().get()), "fill");
    queue_long_work();
    check_gpu(driver.cuMemcpyDtoDAsync_v2(q, kept.address(), bytes, device.stream().get()), "copy");
  }
  ASSERT_EQ(tegula_forward(plan.get(), &device.args(), &execution), TEGULA_OK)
      << tegula_last_error();
  {
    const GpuScope scope(*gpu_);
    check_gpu(driver.cuMemsetD8Async(q, 0xff, bytes, device.stream().get()), "fill");
  }
  check_gpu(driver.cuCtxGetCurrent(&after), "cuCtxGetCurrent");
  EXPECT_EQ(before, after) << "the caller's context changed";
  device.download_outputs();
  EXPECT_EQ(data.used_bits(), bits);
}

// Inside a captured graph, replayed with other outputs.
TEST_F(GpuReports, B14_Captured) {
  ForwardData data(plain(TEGULA_BF16, 200, 200, 4, 4, 64), Placement::kAligned, kPoison);
  ASSERT_EQ(check_on(*gpu_, data), "");
  const std::vector<std::byte> bits = data.used_bits();
  DeviceForward device(*gpu_, data, Placement::kAligned);
  PlanPointer plan;
  ASSERT_EQ(plan_call(*gpu_, data, device, plan), "");
  ASSERT_EQ(tegula_prepare(plan.get()), TEGULA_OK) << tegula_last_error();
  tegula_plan_info info;
  tegula_plan_info_init(&info);
  ASSERT_EQ(tegula_plan_get_info(plan.get(), &info), TEGULA_OK);
  const DeviceBlock workspace(*gpu_, info.scratch_bytes, Placement::kAligned);
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.stream = device.stream().get();
  const cuda::Driver& driver = gpu_->driver();
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  const GpuScope scope(*gpu_);
  check_gpu(
      driver.cuStreamBeginCapture_v2(device.stream().get(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
      "begin");
  if (info.scratch_bytes > 0) {
    EXPECT_EQ(tegula_forward(plan.get(), &device.args(), &execution), TEGULA_INVALID_ARGUMENT)
        << "the pool cannot serve a captured call";
  }
  execution.workspace = workspace.data();
  execution.workspace_size = info.scratch_bytes;
  if (info.scratch_bytes == 0) execution.workspace = nullptr;
  EXPECT_EQ(tegula_forward(plan.get(), &device.args(), &execution), TEGULA_OK)
      << tegula_last_error();
  check_gpu(driver.cuStreamEndCapture(device.stream().get(), &graph), "end");
  check_gpu(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "instantiate");
  for (int n = 0; n < 3; ++n) {
    data.refill_outputs(n);
    device.upload_outputs();
    check_gpu(driver.cuGraphLaunch(executable, device.stream().get()), "launch");
    device.download_outputs();
    EXPECT_EQ(data.used_bits(), bits) << n;
  }
  check_gpu(driver.cuGraphExecDestroy(executable), "destroy");
  check_gpu(driver.cuGraphDestroy(graph), "destroy");
}

// All tensors on the second GPU while the first is current.
TEST_F(GpuReports, B14_OnTheOtherGpu) {
  std::int64_t count = 0;
  ASSERT_EQ(tegula_capability(nullptr, "cuda.devices", &count), TEGULA_OK);
  if (count < 2) GTEST_SKIP() << "one GPU";
  Gpu second(1);
  const GpuScope first(*gpu_);
  EXPECT_EQ(check_on(second, plain(TEGULA_F16, 16, 32, 3, 3, 64)), "");
  cuda::CUdevice current = -1;
  check_gpu(gpu_->driver().cuCtxGetDevice(&current), "cuCtxGetDevice");
  EXPECT_EQ(current, 0);
}

// A fused view of stride 21504 whose last rows lie beyond 2^31 elements; what no row sees is never
// written.
TEST_F(GpuReports, B20_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = 3 * 56 * 128, kHeads = 2, kDim = 64, kKeys = 9;
  for (const std::int64_t length : {99864, 99865, 99866, 99870}) {
    Case item = plain(TEGULA_F16, 1, kKeys, kHeads, kHeads, kDim);
    ForwardData data(item, Placement::kAligned, kPoison);
    DeviceForward device(*gpu_, data, Placement::kAligned);
    const DeviceBlock fused(*gpu_, static_cast<std::size_t>(length * kStride) * 2,
                            Placement::kAligned);
    tegula_forward_args args = device.args();
    tegula_tensor k = *args.k, v = *args.v;
    const cuda::Driver& driver = gpu_->driver();
    for (tegula_tensor* tensor : {&k, &v}) {
      const auto from = reinterpret_cast<cuda::CUdeviceptr>(tensor->data);
      const std::int64_t offset = tensor == &v ? 56 * 128 : 0;
      const GpuScope scope(*gpu_);
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const std::int64_t to = (length - kKeys + j) * kStride + offset;
        check_gpu(
            driver.cuMemcpyDtoDAsync_v2(fused.address() + 2 * static_cast<std::uint64_t>(to),
                                        from + static_cast<std::uint64_t>(j) * kHeads * kDim * 2,
                                        kHeads * kDim * 2, device.stream().get()),
            "copy");
      }
      tensor->data = fused.data();
      tensor->byte_offset = static_cast<std::uint64_t>(2 * offset);
      tensor->shape[1] = length;
      tensor->strides[0] = length * kStride;
      tensor->strides[1] = kStride;
      tensor->strides[2] = kDim;
    }
    args.k = &k;
    args.v = &v;
    tegula_problem problem;
    ASSERT_EQ(data.problem(args, &problem), TEGULA_OK) << tegula_last_error();
    problem.window_left = kKeys - 1;
    PlanPointer plan;
    ASSERT_EQ(make_plan(*gpu_, problem, plan), "");
    tegula_execution execution;
    tegula_execution_init(&execution);
    execution.stream = device.stream().get();
    ASSERT_EQ(tegula_forward(plan.get(), &args, &execution), TEGULA_OK) << tegula_last_error();
    device.download_outputs();
    const Verdict verdict = ForwardReference(data, oracle::DeviceClass::kCuda).judge(data);
    EXPECT_TRUE(verdict.passed()) << length << ": " << verdict.text();
  }
}

}  // namespace
}  // namespace tegula::cases
