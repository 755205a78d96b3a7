/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention with grouped query heads through the C ABI, checked against a naive loop.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <tegula/tegula.h>

enum { kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeadsQ = 4, kHeadsKv = 2, kDim = 16 };

static float q[kBatch][kSeqlenQ][kHeadsQ][kDim];
static float k[kBatch][kSeqlenK][kHeadsKv][kDim];
static float v[kBatch][kSeqlenK][kHeadsKv][kDim];
static float o[kBatch][kSeqlenQ][kHeadsQ][kDim];
static float lse[kBatch][kHeadsQ][kSeqlenQ];

static void fill(float* values, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

/* Largest difference of o and lse from attention written as its definition. */
static double largest_error(void) {
  double worst = 0;
  for (int b = 0; b < kBatch; ++b) {
    for (int h = 0; h < kHeadsQ; ++h) {
      const int h_kv = h / (kHeadsQ / kHeadsKv);
      for (int i = 0; i < kSeqlenQ; ++i) {
        double out[kDim] = {0}, sum = 0;
        for (int j = 0; j <= i + kSeqlenK - kSeqlenQ; ++j) { /* bottom-right causal */
          double score = 0;
          for (int d = 0; d < kDim; ++d) score += (double)q[b][i][h][d] * k[b][j][h_kv][d];
          const double p = exp(score / sqrt(kDim));
          sum += p;
          for (int d = 0; d < kDim; ++d) out[d] += p * v[b][j][h_kv][d];
        }
        worst = fmax(worst, fabs(lse[b][h][i] - log(sum)));
        for (int d = 0; d < kDim; ++d) worst = fmax(worst, fabs(o[b][i][h][d] - out[d] / sum));
      }
    }
  }
  return worst;
}

static int failed(void) {
  fprintf(stderr, "forward: %s\n", tegula_last_error());
  return EXIT_FAILURE;
}

int main(void) {
  fill(&q[0][0][0][0], sizeof q / sizeof(float), 1);
  fill(&k[0][0][0][0], sizeof k / sizeof(float), 2);
  fill(&v[0][0][0][0], sizeof v / sizeof(float), 3);

  const int64_t q_shape[] = {kBatch, kSeqlenQ, kHeadsQ, kDim};
  const int64_t k_shape[] = {kBatch, kSeqlenK, kHeadsKv, kDim};
  const int64_t lse_shape[] = {kBatch, kHeadsQ, kSeqlenQ};
  tegula_tensor q_tensor, k_tensor, v_tensor, o_tensor, lse_tensor;
  if (tegula_tensor_init(&q_tensor, q, TEGULA_F32, 4, q_shape)) return failed();
  if (tegula_tensor_init(&k_tensor, k, TEGULA_F32, 4, k_shape)) return failed();
  if (tegula_tensor_init(&v_tensor, v, TEGULA_F32, 4, k_shape)) return failed();
  if (tegula_tensor_init(&o_tensor, o, TEGULA_F32, 4, q_shape)) return failed();
  if (tegula_tensor_init(&lse_tensor, lse, TEGULA_F32, 3, lse_shape)) return failed();

  tegula_forward_args args;
  if (tegula_forward_args_init(&args)) return failed();
  args.q = &q_tensor;
  args.k = &k_tensor;
  args.v = &v_tensor;
  args.o = &o_tensor;
  args.lse = &lse_tensor;

  tegula_problem problem;
  if (tegula_problem_init(&problem)) return failed();
  if (tegula_describe_forward(&args, &problem)) return failed();
  problem.causal = 1;

  tegula_plan* plan = NULL;
  if (tegula_plan_create(&problem, NULL, &plan)) return failed();
  const tegula_status status = tegula_forward(plan, &args, NULL);
  tegula_plan_destroy(plan);
  if (status) return failed();

  const double error = largest_error();
  printf("largest error %.2e\n", error);
  return error < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
