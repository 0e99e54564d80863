# SPDX-License-Identifier: Apache-2.0
"""What measurements prove: intervals, finals, verdicts."""
