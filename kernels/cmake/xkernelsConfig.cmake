# SPDX-License-Identifier: Apache-2.0
#
# find_package(xkernels) gives the target xkernels::xkernels: the header xkernels.h and libxkernels.so.
# A program with OpenMP regions of its own should be compiled by GCC, like the library: then both use
# one OpenMP runtime and one team.
include("${CMAKE_CURRENT_LIST_DIR}/xkernelsTargets.cmake")
