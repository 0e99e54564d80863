// SPDX-License-Identifier: Apache-2.0
// A program in C with OpenMP: two loops over arrays, one bound by memory and one by arithmetic.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COUNT = 1 << 22 };
static double first[COUNT], second[COUNT];

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static double step(void) {
  double sum = 0;
#pragma omp parallel for
  for (int i = 0; i < COUNT; i++) second[i] = 0.5 * first[i] + second[i];
#pragma omp parallel for schedule(dynamic, 4096) reduction(+ : sum)
  for (int i = 0; i < COUNT; i++) sum += sqrt(fabs(second[i])) * exp(-second[i]);
  return sum;
}

int main(void) {
  for (int i = 0; i < COUNT; i++) first[i] = i % 7;
  double sum = step(), began = seconds();
  for (int unit = atoi(getenv("HARMLESS_UNITS")); unit > 0; unit--) sum += step();
  double ended = seconds();
  FILE *result = fopen(getenv("HARMLESS_RESULT"), "w");
  if (!result || !isfinite(sum)) return 1;
  fprintf(result, "%.9f %.9f", began, ended);
  return fclose(result);
}
