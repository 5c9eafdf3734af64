// Bit functions, conversions and the arithmetic of bfloat16 and half. conversions.cu is for
// the conversions of all 65,536 numbers.
#include <cmath>

#include "check.h"

namespace {

unsigned short bits(__nv_bfloat16 x) {
  return __bfloat16_as_ushort(x);
}
unsigned short bits(__half x) {
  return __half_as_ushort(x);
}

}  // namespace

CHECK(bit_functions) {
  EXPECT(__popc(0xf0f0u) == 8 && __popcll(~0ull) == 64);
  EXPECT(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0 && __clzll(1) == 63 && __clzll(0) == 64);
  EXPECT(__ffs(0) == 0 && __ffs(8) == 4 && __ffsll(1ll << 40) == 41);
  EXPECT(__brev(1u) == 0x80000000u && __brev(0x12345678u) == 0x1e6a2c48u && __brevll(1ull) == 1ull << 63);
  EXPECT(__byte_perm(0x33221100u, 0x77665544u, 0x7531) == 0x77553311u);
  EXPECT(__byte_perm(0x000080ffu, 0, 0x8a98) == 0xff00ffffu);  // the sign of bytes 0, 2, 1, 0
  EXPECT(__funnelshift_l(0x80000001u, 0x2u, 1) == 0x5u && __funnelshift_r(0x2u, 0x1u, 1) == 0x80000001u);
  EXPECT(__funnelshift_r(7u, 9u, 32) == 7u);  // shifts count modulo 32
  EXPECT(__dp4a(int(0x01ff02feu), int(0x02020202u), 5) == 5 + 2 * (1 - 1 + 2 - 2));
  EXPECT(__dp4a(0x01ff02feu, 0x02020202u, 5u) == 5 + 2 * (1 + 255 + 2 + 254));
  EXPECT(__vmaxu2(0x0001ffffu, 0x80007fffu) == 0x8000ffffu && __vminu2(0x0001ffffu, 0x80007fffu) == 0x00017fffu);
  EXPECT(__mulhi(-3, 1 << 30) == -1 && __umulhi(0x80000000u, 6u) == 3);
  EXPECT(__float_as_uint(1.0f) == 0x3f800000u && __int_as_float(-1) != __int_as_float(-1));
  EXPECT(__longlong_as_double(__double_as_longlong(-0.1)) == -0.1);
}

CHECK(conversions_to_integers_saturate) {
  EXPECT(__float2int_rn(2.5f) == 2 && __float2int_rn(3.5f) == 4 && __float2int_rz(-2.7f) == -2);
  EXPECT(__float2int_rd(-2.2f) == -3 && __float2int_ru(2.2f) == 3);
  EXPECT(__float2int_rn(3e9f) == 2147483647 && __float2int_rn(-3e9f) == -2147483647 - 1 && __float2int_rn(NAN) == 0);
  EXPECT(__float2uint_rn(-1.0f) == 0 && __float2uint_rz(4294967040.0f) == 4294967040u && __float2uint_rn(5e9f) == ~0u);
  EXPECT(__double2int_rn(2147483647.0) == 2147483647 && __float2ll_rn(INFINITY) == 9223372036854775807ll);
}

CHECK(float_functions) {
  EXPECT(rsqrtf(4.0f) == 0.5f && __frcp_rn(8.0f) == 0.125f && __fdividef(1.0f, 3.0f) == 1.0f / 3.0f);
  EXPECT(std::fabs(__expf(1.0f) - 2.7182817f) < 1e-6f && __log2f(8.0f) == 3.0f && exp2f(3.0f) == 8.0f);
  EXPECT(__fmaf_rn(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -1.0f) == 0x1p-11f + 0x1p-24f);  // one rounding, not two
  EXPECT(__saturatef(NAN) == 0.0f && __saturatef(2.0f) == 1.0f && __saturatef(-1.0f) == 0.0f);
  EXPECT(min(1.0f, NAN) == 1.0f && max(NAN, 1.0f) == 1.0f && min(-1, 2) == -1 && max(1u, 2u) == 2u);
}

CHECK(arithmetic_of_bfloat16) {
  const auto n = [](float x) { return __float2bfloat16(x); };
  EXPECT(bits(n(1.00390625f)) == 0x3f80 && bits(n(1.01171875f)) == 0x3f82);  // ties to even
  EXPECT(bits(n(3.4e38f)) == 0x7f80 && bits(n(NAN)) == 0x7fff && bits(n(-0.0f)) == 0x8000);
  EXPECT(bits(__hadd(n(256.0f), n(1.0f))) == bits(n(256.0f)) && bits(__hmul(n(3.0f), n(5.0f))) == bits(n(15.0f)));
  EXPECT(bits(__hneg(n(1.0f))) == 0xbf80 && bits(__habs(n(-1.0f))) == 0x3f80 && __hisnan(n(NAN)) &&
         __hisinf(n(-INFINITY)) == -1);
  EXPECT(bits(__hmax(n(NAN), n(2.0f))) == bits(n(2.0f)) && __hlt(n(1.0f), n(2.0f)) && !__heq(n(NAN), n(NAN)));
}

CHECK(arithmetic_of_half) {
  const auto n = [](float x) { return __float2half(x); };
  EXPECT(bits(n(65519.0f)) == 0x7bff && bits(n(65520.0f)) == 0x7c00 && bits(n(-NAN)) == 0x7fff);
  EXPECT(bits(n(0x1p-24f)) == 1 && bits(n(0x1p-25f)) == 0 && bits(n(0x1.8p-25f)) == 1 && bits(n(-0x1p-26f)) == 0x8000);
  EXPECT(bits(__hadd(n(2048.0f), n(1.0f))) == bits(n(2048.0f)) && bits(__hdiv(n(1.0f), n(3.0f))) == 0x3555);
  EXPECT(__half22float2(__hmul2(__floats2half2_rn(2, 3), __float2half2_rn(4))).y == 12.0f);
}

// A product and a sum that lie exactly between two numbers, but for a bit that fp32, or even fp64, cannot hold.
CHECK(fused_multiply_add_rounds_once) {
  const auto h = [](float x) { return __float2half(x); };
  // 1.5 * 1 is 1 + 512 * 2^-10; half an ulp more is a tie, to even; a sixteenth million of an ulp decides it.
  EXPECT(bits(__hfma(h(0x1p-11f), h(1.0f), h(1.0f))) == bits(h(1.0f)));
  EXPECT(bits(__hfma(h(0x1.004p-11f), h(1.0f), h(1.0f))) == bits(h(1.0f + 0x1p-10f)));
  const auto b = [](float x) { return __float2bfloat16(x); };
  EXPECT(bits(__hfma(b(0x1p-70f), b(0x1p-70f), b(1.0f))) == bits(b(1.0f)));
  EXPECT(bits(__hfma(b(0x1.02p+0f), b(0x1.02p-8f), b(1.0f))) == bits(b(0x1.02p+0f)));  // just above the tie
  EXPECT(bits(__hfma(b(1.0f), b(INFINITY), b(-INFINITY))) == 0x7fff);
}
