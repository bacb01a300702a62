/* SwiGLU (Shazeer 2020): silu(gate) * up; a row is gates, then as many ups. */
#include "kernels.h"
#include "lanes.h"

/* 0 below -88, where e^-x is no number any more. */
INLINE lanes sigmoid(lanes x) { return chosen(x > all(-88.0f), all(1.0f) / (all(1.0f) + exponential(-x)), all(0.0f)); }

/* gate_up [rows, 2 * width] -> y [rows, width]. */
void swiglu(const float *gate_up, long rows, long width, float *y) {
    for (long i = 0; i < rows; i++) {
        const float *gates = gate_up + 2 * i * width, *ups = gates + width;
        for (long d = 0; d < width; d += LANES) {
            lanes gate = get(gates + d, width - d);
            put(y + i * width + d, gate * sigmoid(gate) * get(ups + d, width - d), width - d);
        }
    }
}

/* grad [rows, width] -> d_gate_up [rows, 2 * width], and y once more where it is not NULL. */
void swiglu_backward(const float *grad, const float *gate_up, long rows, long width, float *d_gate_up, float *y) {
    for (long i = 0; i < rows; i++) {
        const float *gates = gate_up + 2 * i * width, *ups = gates + width;
        float *d_gates = d_gate_up + 2 * i * width, *d_ups = d_gates + width;
        for (long d = 0; d < width; d += LANES) {
            lanes gate = get(gates + d, width - d), up = get(ups + d, width - d);
            lanes slope = get(grad + i * width + d, width - d), share = sigmoid(gate);
            lanes silu = gate * share;
            /* silu' = share + silu * (1 - share) */
            put(d_gates + d, slope * up * fused(silu, all(1.0f) - share, share), width - d);
            put(d_ups + d, slope * silu, width - d);
            if (y) put(y + i * width + d, silu * up, width - d);
        }
    }
}
