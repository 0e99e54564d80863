# SPDX-License-Identifier: Apache-2.0
"""INT8 beside fp32 and beside torchao used by hand."""
