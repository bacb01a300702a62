/* The kernels that whole layers are made of; what each does is said where it is. */
#ifndef RLCORE_KERNELS_H
#define RLCORE_KERNELS_H

#include <stdint.h>

void rms_norm(const float *x, const float *added, const float *weight, float eps, long rows, long width, float *total,
              float *y, float *inverse);
void swiglu(const float *gate_up, long rows, long width, float *y);
void swiglu_backward(const float *grad, const float *gate_up, long rows, long width, float *d_gate_up, float *y);
int attend(const float *heads, const float *q_norm, const float *k_norm, float eps, const float *turns,
           const int64_t *starts, long batch, long length, long num_heads, long num_kv_heads, long width,
           long positions, float *keys, float *values, long capacity, long threads, float *mixed, float *tops,
           float *totals);
int attend_backward(const float *grad, const float *heads, const float *mixed, const float *tops, const float *totals,
                    const float *q_norm, const float *k_norm, float eps, const float *turns, long batch, long length,
                    long num_heads, long num_kv_heads, long width, long threads, float *d_heads, float *d_q_norm,
                    float *d_k_norm);

#endif
