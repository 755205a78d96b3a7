/* SPDX-License-Identifier: Apache-2.0
 *
 * The C header on its own, in strict C99: compiled by the tests, never linked into one.
 */
#include <tegula/tegula.h>

tegula_status header_c99(void);

tegula_status header_c99(void) {
  tegula_problem problem;
  tegula_device device;
  tegula_forward_args args;
  const int64_t shape[4] = {1, 2, 3, 4};
  tegula_tensor tensor;
  if (tegula_problem_init(&problem) != TEGULA_OK) return TEGULA_INTERNAL_ERROR;
  if (tegula_device_init(&device) != TEGULA_OK) return TEGULA_INTERNAL_ERROR;
  if (tegula_forward_args_init(&args) != TEGULA_OK) return TEGULA_INTERNAL_ERROR;
  args.q = &tensor;
  return tegula_tensor_init(&tensor, NULL, TEGULA_F32, 4, shape);
}
