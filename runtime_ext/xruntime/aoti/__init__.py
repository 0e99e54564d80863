# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages: made, checked, loaded and called."""
