// The rotation of one pair: what rope.cu and the fused op in kv.cu share.
#pragma once
#include "device.cuh"

DEVICE void rotate(float &a, float &b, float c, float s) {
    float first = madd(a, c, -mul(b, s));
    b = madd(b, c, mul(a, s));
    a = first;
}
