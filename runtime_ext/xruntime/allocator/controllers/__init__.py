# SPDX-License-Identifier: Apache-2.0
"""One class for each allocator, all with the methods of `xruntime.allocator.controller.Allocator`."""
