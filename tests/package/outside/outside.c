/* SPDX-License-Identifier: Apache-2.0 */
/* A zero query weighs all keys alike: o is the mean of v's rows. */
#include <math.h>
#include <stdio.h>
#include <tegula/tegula.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, tegula_last_error());
  return 1;
}

int main(void) {
  float q[8] = {0}, k[2 * 8], v[2 * 8], o[8], lse[1];
  const int64_t q_shape[4] = {1, 1, 1, 8}, kv_shape[4] = {1, 2, 1, 8}, lse_shape[3] = {1, 1, 1};
  tegula_tensor tq, tk, tv, to, tlse;
  tegula_forward_args args;
  tegula_problem problem;
  tegula_plan* plan = NULL;
  int i;

  for (i = 0; i < 16; i++) {
    k[i] = (float)i;
    v[i] = (float)(i * i);
  }
  if (tegula_version() / 100 != TEGULA_VERSION_MAJOR * 100 + TEGULA_VERSION_MINOR ||
      tegula_abi_version() != TEGULA_ABI_VERSION) {
    fprintf(stderr, "the library's version is not the header's\n");
    return 1;
  }
  if (tegula_tensor_init(&tq, q, TEGULA_F32, 4, q_shape) || tegula_tensor_init(&tk, k, TEGULA_F32, 4, kv_shape) ||
      tegula_tensor_init(&tv, v, TEGULA_F32, 4, kv_shape) || tegula_tensor_init(&to, o, TEGULA_F32, 4, q_shape) ||
      tegula_tensor_init(&tlse, lse, TEGULA_F32, 3, lse_shape) || tegula_forward_args_init(&args) ||
      tegula_problem_init(&problem)) {
    return failed("init");
  }
  args.q = &tq;
  args.k = &tk;
  args.v = &tv;
  args.o = &to;
  args.lse = &tlse;
  if (tegula_describe_forward(&args, &problem)) return failed("describe");
  if (tegula_plan_create(&problem, NULL, &plan)) return failed("plan");
  if (tegula_forward(plan, &args, NULL)) return failed("forward");
  tegula_plan_destroy(plan);
  for (i = 0; i < 8; i++) {
    const float mean = (v[i] + v[8 + i]) / 2;
    if (!(fabsf(o[i] - mean) <= 1e-4f * mean + 1e-6f)) {
      fprintf(stderr, "o[%d] is %g, not %g\n", i, (double)o[i], (double)mean);
      return 1;
    }
  }
  if (!(fabsf(lse[0] - logf(2.0f)) <= 1e-5f)) {
    fprintf(stderr, "lse is %g, not log(2)\n", (double)lse[0]);
    return 1;
  }
  return 0;
}
