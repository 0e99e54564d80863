# SPDX-License-Identifier: Apache-2.0
#
# find_package(xkernels) gives the target xkernels::xkernels: the header xkernels.h and libxkernels.so.
# A program that has OpenMP regions of its own is best compiled by GCC, like the library: then both
# run on one OpenMP runtime and on one team.
include("${CMAKE_CURRENT_LIST_DIR}/xkernelsTargets.cmake")
