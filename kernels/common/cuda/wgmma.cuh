// wgmma: a warpgroup multiplies 64xK by KxN from shared memory (A also from registers) into f32 registers, i32 ones for S8.
//
//     fence(); Wgmma<N>::mma<WgmmaType::BF16>(d, a, b, accumulate); ... commit(); wait<0>();
//
// Fragment of D, and of A in registers: warp w owns rows 16w to 16w + 15; in it lane l holds, of every 8 columns i,
//     d[4i], d[4i + 1]      row l / 4,     columns 8i + 2 (l % 4) and the next
//     d[4i + 2], d[4i + 3]  row l / 4 + 8, the same columns
#pragma once
#include "common/cuda/ptx.cuh"

// TF32 operands are f32 of which the last 13 bits do not count.
enum class WgmmaType { BF16, F16, TF32, E4M3, E5M2, E4M3_E5M2, E5M2_E4M3, S8 };

namespace wgmma {

// Descriptors of tiles that the copy engine wrote with its 128-byte swizzle: slabs of 128 bytes per row, 1024-byte aligned.
//
// In a cluster, the upper bits of an address tell whose shared memory it is; they have no place here.
//
// Rows along M or N, 128 bytes of K (K-major): one slab of any number of rows. The next 32 bytes of K are 2 further.
KP_FN u64 k_major(u32 smem) { return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (smem & 0x3ffff) >> 4; }
// Rows along K, 64 16-bit elements of M or N (MN-major): slabs of `K` rows, one behind the other. The next 16 of K are 128 further.
template <int K> KP_FN u64 mn_major(u32 smem) { return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u32)(K * 128 >> 4) << 16 | (smem & 0x3ffff) >> 4; }

// The descriptor `by` units of 16 bytes further; only its low word changes.
KP_FN u64 further(u64 descriptor, u32 by) { return (descriptor & ~(u64)0xffffffff) | ((u32)descriptor + by); }

// Orders register accesses (and shared memory written by this thread's fences) before the wgmmas that follow.
KP_FN void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KP_FN void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last N groups are complete.
template <int N> KP_FN void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from moving accesses of the accumulator over this point.
template <int N> KP_FN void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> KP_FN void pin(i32 (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

} // namespace wgmma

// Multiplies into d; `accumulate` 0 overwrites it. A_MN and B_MN tell which operands are MN-major (16-bit types only).
template <int N> struct Wgmma;

#define KP_D1 "%0, %1, %2, %3"
#define KP_D2 KP_D1 ", %4, %5, %6, %7"
#define KP_D3 KP_D2 ", %8, %9, %10, %11"
#define KP_D4 KP_D3 ", %12, %13, %14, %15"
#define KP_D5 KP_D4 ", %16, %17, %18, %19"
#define KP_D6 KP_D5 ", %20, %21, %22, %23"
#define KP_D7 KP_D6 ", %24, %25, %26, %27"
#define KP_D8 KP_D7 ", %28, %29, %30, %31"
#define KP_D9 KP_D8 ", %32, %33, %34, %35"
#define KP_D10 KP_D9 ", %36, %37, %38, %39"
#define KP_D11 KP_D10 ", %40, %41, %42, %43"
#define KP_D12 KP_D11 ", %44, %45, %46, %47"
#define KP_D13 KP_D12 ", %48, %49, %50, %51"
#define KP_D14 KP_D13 ", %52, %53, %54, %55"
#define KP_D15 KP_D14 ", %56, %57, %58, %59"
#define KP_D16 KP_D15 ", %60, %61, %62, %63"
#define KP_D17 KP_D16 ", %64, %65, %66, %67"
#define KP_D18 KP_D17 ", %68, %69, %70, %71"
#define KP_D19 KP_D18 ", %72, %73, %74, %75"
#define KP_D20 KP_D19 ", %76, %77, %78, %79"
#define KP_D21 KP_D20 ", %80, %81, %82, %83"
#define KP_D22 KP_D21 ", %84, %85, %86, %87"
#define KP_D23 KP_D22 ", %88, %89, %90, %91"
#define KP_D24 KP_D23 ", %92, %93, %94, %95"
#define KP_D25 KP_D24 ", %96, %97, %98, %99"
#define KP_D26 KP_D25 ", %100, %101, %102, %103"
#define KP_D27 KP_D26 ", %104, %105, %106, %107"
#define KP_D28 KP_D27 ", %108, %109, %110, %111"
#define KP_D29 KP_D28 ", %112, %113, %114, %115"
#define KP_D30 KP_D29 ", %116, %117, %118, %119"
#define KP_D31 KP_D30 ", %120, %121, %122, %123"
#define KP_D32 KP_D31 ", %124, %125, %126, %127"
#define KP_O1(c) c(d[0]), c(d[1]), c(d[2]), c(d[3])
#define KP_O2(c) KP_O1(c), c(d[4]), c(d[5]), c(d[6]), c(d[7])
#define KP_O3(c) KP_O2(c), c(d[8]), c(d[9]), c(d[10]), c(d[11])
#define KP_O4(c) KP_O3(c), c(d[12]), c(d[13]), c(d[14]), c(d[15])
#define KP_O5(c) KP_O4(c), c(d[16]), c(d[17]), c(d[18]), c(d[19])
#define KP_O6(c) KP_O5(c), c(d[20]), c(d[21]), c(d[22]), c(d[23])
#define KP_O7(c) KP_O6(c), c(d[24]), c(d[25]), c(d[26]), c(d[27])
#define KP_O8(c) KP_O7(c), c(d[28]), c(d[29]), c(d[30]), c(d[31])
#define KP_O9(c) KP_O8(c), c(d[32]), c(d[33]), c(d[34]), c(d[35])
#define KP_O10(c) KP_O9(c), c(d[36]), c(d[37]), c(d[38]), c(d[39])
#define KP_O11(c) KP_O10(c), c(d[40]), c(d[41]), c(d[42]), c(d[43])
#define KP_O12(c) KP_O11(c), c(d[44]), c(d[45]), c(d[46]), c(d[47])
#define KP_O13(c) KP_O12(c), c(d[48]), c(d[49]), c(d[50]), c(d[51])
#define KP_O14(c) KP_O13(c), c(d[52]), c(d[53]), c(d[54]), c(d[55])
#define KP_O15(c) KP_O14(c), c(d[56]), c(d[57]), c(d[58]), c(d[59])
#define KP_O16(c) KP_O15(c), c(d[60]), c(d[61]), c(d[62]), c(d[63])
#define KP_O17(c) KP_O16(c), c(d[64]), c(d[65]), c(d[66]), c(d[67])
#define KP_O18(c) KP_O17(c), c(d[68]), c(d[69]), c(d[70]), c(d[71])
#define KP_O19(c) KP_O18(c), c(d[72]), c(d[73]), c(d[74]), c(d[75])
#define KP_O20(c) KP_O19(c), c(d[76]), c(d[77]), c(d[78]), c(d[79])
#define KP_O21(c) KP_O20(c), c(d[80]), c(d[81]), c(d[82]), c(d[83])
#define KP_O22(c) KP_O21(c), c(d[84]), c(d[85]), c(d[86]), c(d[87])
#define KP_O23(c) KP_O22(c), c(d[88]), c(d[89]), c(d[90]), c(d[91])
#define KP_O24(c) KP_O23(c), c(d[92]), c(d[93]), c(d[94]), c(d[95])
#define KP_O25(c) KP_O24(c), c(d[96]), c(d[97]), c(d[98]), c(d[99])
#define KP_O26(c) KP_O25(c), c(d[100]), c(d[101]), c(d[102]), c(d[103])
#define KP_O27(c) KP_O26(c), c(d[104]), c(d[105]), c(d[106]), c(d[107])
#define KP_O28(c) KP_O27(c), c(d[108]), c(d[109]), c(d[110]), c(d[111])
#define KP_O29(c) KP_O28(c), c(d[112]), c(d[113]), c(d[114]), c(d[115])
#define KP_O30(c) KP_O29(c), c(d[116]), c(d[117]), c(d[118]), c(d[119])
#define KP_O31(c) KP_O30(c), c(d[120]), c(d[121]), c(d[122]), c(d[123])
#define KP_O32(c) KP_O31(c), c(d[124]), c(d[125]), c(d[126]), c(d[127])


// i0 to i6 are the places of the operands behind the accumulator. `signs` are the factors of A and B, 1, which integers do not have.
#define KP_WGMMA_ASM(n, k, types, regs, a, b, accumulate, signs, ...)                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k" #k "." types           \
                 " {" regs "}, " a ", " b ", p" signs ";\n}"                                                                              \
                 : __VA_ARGS__)
#define KP_WGMMA_TYPES(n, regs, a, b, accumulate, tail16, operands16, operands)                                                            \
    if constexpr (T == WgmmaType::BF16) KP_WGMMA_ASM(n, 16, "f32.bf16.bf16", regs, a, b, accumulate, ", 1, 1" tail16, operands16);         \
    else if constexpr (T == WgmmaType::F16) KP_WGMMA_ASM(n, 16, "f32.f16.f16", regs, a, b, accumulate, ", 1, 1" tail16, operands16);       \
    else if constexpr (T == WgmmaType::TF32) KP_WGMMA_ASM(n, 8, "f32.tf32.tf32", regs, a, b, accumulate, ", 1, 1", operands);              \
    else if constexpr (T == WgmmaType::E4M3) KP_WGMMA_ASM(n, 32, "f32.e4m3.e4m3", regs, a, b, accumulate, ", 1, 1", operands);             \
    else if constexpr (T == WgmmaType::E5M2) KP_WGMMA_ASM(n, 32, "f32.e5m2.e5m2", regs, a, b, accumulate, ", 1, 1", operands);             \
    else if constexpr (T == WgmmaType::E4M3_E5M2) KP_WGMMA_ASM(n, 32, "f32.e4m3.e5m2", regs, a, b, accumulate, ", 1, 1", operands);        \
    else KP_WGMMA_ASM(n, 32, "f32.e5m2.e4m3", regs, a, b, accumulate, ", 1, 1", operands)
#define KP_LIST(...) __VA_ARGS__
#define KP_WGMMA(n, regs, outs, i0, i1, i2, i3, i4, i5, i6)                                                                                \
    template <> struct Wgmma<n> {                                                                                                          \
        template <WgmmaType T, int A_MN = 0, int B_MN = 0> static KP_FN void mma(float (&d)[n / 2], u64 a, u64 b, u32 accumulate) {        \
            KP_WGMMA_TYPES(n, regs, i0, i1, i2, ", " i3 ", " i4,                                                                           \
                           KP_LIST(outs("+f") : "l"(a), "l"(b), "r"(accumulate), "n"(A_MN), "n"(B_MN)),                                    \
                           KP_LIST(outs("+f") : "l"(a), "l"(b), "r"(accumulate)));                                                         \
        }                                                                                                                                  \
        template <WgmmaType T, int A_MN = 0, int B_MN = 0> static KP_FN void mma(i32 (&d)[n / 2], u64 a, u64 b, u32 accumulate) {          \
            static_assert(T == WgmmaType::S8, "i32 holds sums of integers");                                                               \
            KP_WGMMA_ASM(n, 32, "s32.s8.s8", regs, i0, i1, i2, "", KP_LIST(outs("+r") : "l"(a), "l"(b), "r"(accumulate)));                 \
        }                                                                                                                                  \
        template <WgmmaType T, int B_MN = 0> static KP_FN void mma(float (&d)[n / 2], const u32 (&a)[4], u64 b, u32 accumulate) {          \
            KP_WGMMA_TYPES(n, regs, "{" i0 ", " i1 ", " i2 ", " i3 "}", i4, i5, ", " i6,                                                   \
                           KP_LIST(outs("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(B_MN)),           \
                           KP_LIST(outs("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)));                     \
        }                                                                                                                                  \
    };

KP_WGMMA(8, KP_D1, KP_O1, "%4", "%5", "%6", "%7", "%8", "%9", "%10")
KP_WGMMA(16, KP_D2, KP_O2, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
KP_WGMMA(24, KP_D3, KP_O3, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
KP_WGMMA(32, KP_D4, KP_O4, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
KP_WGMMA(40, KP_D5, KP_O5, "%20", "%21", "%22", "%23", "%24", "%25", "%26")
KP_WGMMA(48, KP_D6, KP_O6, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
KP_WGMMA(56, KP_D7, KP_O7, "%28", "%29", "%30", "%31", "%32", "%33", "%34")
KP_WGMMA(64, KP_D8, KP_O8, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
KP_WGMMA(72, KP_D9, KP_O9, "%36", "%37", "%38", "%39", "%40", "%41", "%42")
KP_WGMMA(80, KP_D10, KP_O10, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
KP_WGMMA(88, KP_D11, KP_O11, "%44", "%45", "%46", "%47", "%48", "%49", "%50")
KP_WGMMA(96, KP_D12, KP_O12, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
KP_WGMMA(104, KP_D13, KP_O13, "%52", "%53", "%54", "%55", "%56", "%57", "%58")
KP_WGMMA(112, KP_D14, KP_O14, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
KP_WGMMA(120, KP_D15, KP_O15, "%60", "%61", "%62", "%63", "%64", "%65", "%66")
KP_WGMMA(128, KP_D16, KP_O16, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
KP_WGMMA(136, KP_D17, KP_O17, "%68", "%69", "%70", "%71", "%72", "%73", "%74")
KP_WGMMA(144, KP_D18, KP_O18, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
KP_WGMMA(152, KP_D19, KP_O19, "%76", "%77", "%78", "%79", "%80", "%81", "%82")
KP_WGMMA(160, KP_D20, KP_O20, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
KP_WGMMA(168, KP_D21, KP_O21, "%84", "%85", "%86", "%87", "%88", "%89", "%90")
KP_WGMMA(176, KP_D22, KP_O22, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
KP_WGMMA(184, KP_D23, KP_O23, "%92", "%93", "%94", "%95", "%96", "%97", "%98")
KP_WGMMA(192, KP_D24, KP_O24, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
KP_WGMMA(200, KP_D25, KP_O25, "%100", "%101", "%102", "%103", "%104", "%105", "%106")
KP_WGMMA(208, KP_D26, KP_O26, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
KP_WGMMA(216, KP_D27, KP_O27, "%108", "%109", "%110", "%111", "%112", "%113", "%114")
KP_WGMMA(224, KP_D28, KP_O28, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
KP_WGMMA(232, KP_D29, KP_O29, "%116", "%117", "%118", "%119", "%120", "%121", "%122")
KP_WGMMA(240, KP_D30, KP_O30, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
KP_WGMMA(248, KP_D31, KP_O31, "%124", "%125", "%126", "%127", "%128", "%129", "%130")
KP_WGMMA(256, KP_D32, KP_O32, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
