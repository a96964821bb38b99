//! Vectors of `f32` for AVX-512 and AVX2: every lane belongs to another line.

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// A vector whose lanes are lines. One is made only where the processor has the instructions: whoever calls an unsafe
/// function here vouches for that, and the others have a vector already.
pub(super) trait Vector: Copy {
    const LANES: usize;
    /// Calls `work`, compiled with the instructions of the vector.
    ///
    /// # Safety
    /// The processor has them.
    unsafe fn run(work: impl FnOnce());
    /// # Safety
    /// The processor has the instructions.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// All lanes can be read.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// All lanes can be written.
    unsafe fn store(self, to: *mut f32);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * by + plus`, rounded once.
    fn mul_add(self, by: Self, plus: Self) -> Self;
    /// `self * by - minus`, rounded once.
    fn mul_sub(self, by: Self, minus: Self) -> Self;
    /// `from - self * by`, rounded once.
    fn mul_from(self, by: Self, from: Self) -> Self;
    /// Pairs, as the first and the second of every pair.
    fn split(low: Self, high: Self) -> (Self, Self);
    /// The other way round.
    fn pair(first: Self, second: Self) -> (Self, Self);
    /// Reads as many numbers of as many lines as there are lanes, and writes them number by number.
    ///
    /// # Safety
    /// They can be read, lines being `line` apart, and all those vectors can be written.
    unsafe fn lines_to_lanes(from: *const f32, line: isize, to: *mut f32);
    /// The other way round. Numbers are pairs, whose places are numbered; there is a place for every two lanes.
    ///
    /// # Safety
    /// Likewise.
    unsafe fn lanes_to_lines(from: *const f32, places: &[u32], to: *mut f32, line: isize);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    macro_rules! vector {
        ($name:ident, $raw:ty, $lanes:literal, $features:literal,
         $splat:ident $load:ident $store:ident $add:ident $sub:ident $mul:ident $fma:ident $fms:ident $fnma:ident,
         $($more:item)*) => {
            #[derive(Clone, Copy)]
            pub(in super::super) struct $name($raw);

            impl Vector for $name {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn run(work: impl FnOnce()) {
                    #[inline(never)]
                    #[target_feature(enable = $features)]
                    fn with(work: impl FnOnce()) {
                        work();
                    }
                    // SAFETY: the caller vouches for the processor.
                    unsafe { with(work) }
                }
                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the caller vouches for the processor.
                    Self(unsafe { $splat(x) })
                }
                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller vouches for the processor and the memory.
                    Self(unsafe { $load(from) })
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller vouches for the memory.
                    unsafe { $store(to, self.0) }
                }
                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: there is a vector, so the processor has the instructions; likewise below.
                    Self(unsafe { $add(self.0, other.0) })
                }
                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $sub(self.0, other.0) })
                }
                #[inline(always)]
                fn mul(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $mul(self.0, other.0) })
                }
                #[inline(always)]
                fn mul_add(self, by: Self, plus: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $fma(self.0, by.0, plus.0) })
                }
                #[inline(always)]
                fn mul_sub(self, by: Self, minus: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $fms(self.0, by.0, minus.0) })
                }
                #[inline(always)]
                fn mul_from(self, by: Self, from: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $fnma(self.0, by.0, from.0) })
                }
                $($more)*
            }
        };
    }

    vector!(
        Avx512, __m512, 16, "avx512f",
        _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps
        _mm512_fmadd_ps _mm512_fmsub_ps _mm512_fnmadd_ps,
        #[inline(always)]
        fn split(low: Self, high: Self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
                (Self(_mm512_permutex2var_ps(low.0, even, high.0)), Self(_mm512_permutex2var_ps(low.0, odd, high.0)))
            }
        }
        #[inline(always)]
        fn pair(first: Self, second: Self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                (Self(_mm512_permutex2var_ps(first.0, low, second.0)), Self(_mm512_permutex2var_ps(first.0, high, second.0)))
            }
        }
        #[inline(always)]
        unsafe fn lines_to_lanes(from: *const f32, line: isize, to: *mut f32) {
            // SAFETY: the caller vouches for what is read and written, and for the processor.
            unsafe {
                for quarter in 0..4 {
                    // A quarter of a line at a time; lines that are four apart share a vector.
                    let mut q = [_mm512_setzero_ps(); 4];
                    for (l, q) in q.iter_mut().enumerate() {
                        let at = from.offset(l as isize * line).add(4 * quarter);
                        let all = _mm512_castps128_ps512(_mm_loadu_ps(at));
                        let all = _mm512_mask_broadcast_f32x4(all, 0x00f0, _mm_loadu_ps(at.offset(4 * line)));
                        let all = _mm512_mask_broadcast_f32x4(all, 0x0f00, _mm_loadu_ps(at.offset(8 * line)));
                        *q = _mm512_mask_broadcast_f32x4(all, 0xf000, _mm_loadu_ps(at.offset(12 * line)));
                    }
                    let (a, b) = (_mm512_unpacklo_ps(q[0], q[1]), _mm512_unpackhi_ps(q[0], q[1]));
                    let (c, d) = (_mm512_unpacklo_ps(q[2], q[3]), _mm512_unpackhi_ps(q[2], q[3]));
                    let (a, b, c, d) =
                        (_mm512_castps_pd(a), _mm512_castps_pd(b), _mm512_castps_pd(c), _mm512_castps_pd(d));
                    let rows = [
                        _mm512_unpacklo_pd(a, c), _mm512_unpackhi_pd(a, c), _mm512_unpacklo_pd(b, d), _mm512_unpackhi_pd(b, d),
                    ];
                    for (i, row) in rows.into_iter().enumerate() {
                        _mm512_storeu_ps(to.add((4 * quarter + i) * 16), _mm512_castpd_ps(row));
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn lanes_to_lines(from: *const f32, places: &[u32], to: *mut f32, line: isize) {
            // SAFETY: the caller vouches for what is read and written, and for the processor.
            unsafe {
                let mut t = [_mm512_setzero_ps(); 16];
                // Quarters are turned, then they find their lines.
                for q in 0..4 {
                    let (a, b) = (from.add(places[2 * q] as usize * 32), from.add(places[2 * q + 1] as usize * 32));
                    let v = [_mm512_loadu_ps(a), _mm512_loadu_ps(a.add(16)), _mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16))];
                    let (a, b) = (_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
                    let (c, d) = (_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
                    let (a, b, c, d) =
                        (_mm512_castps_pd(a), _mm512_castps_pd(b), _mm512_castps_pd(c), _mm512_castps_pd(d));
                    t[q] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                    t[4 + q] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                    t[8 + q] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                    t[12 + q] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
                }
                for i in 0..4 {
                    let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
                    let (ab, ab2) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                    let (cd, cd2) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
                    let to = to.offset(i as isize * line);
                    _mm512_storeu_ps(to, _mm512_shuffle_f32x4::<0x88>(ab, cd));
                    _mm512_storeu_ps(to.offset(4 * line), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
                    _mm512_storeu_ps(to.offset(8 * line), _mm512_shuffle_f32x4::<0x88>(ab2, cd2));
                    _mm512_storeu_ps(to.offset(12 * line), _mm512_shuffle_f32x4::<0xdd>(ab2, cd2));
                }
            }
        }
    );

    vector!(
        Avx2, __m256, 8, "avx2,fma",
        _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps
        _mm256_fmadd_ps _mm256_fmsub_ps _mm256_fnmadd_ps,
        #[inline(always)]
        fn split(low: Self, high: Self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                let (a, b) = (_mm256_permute2f128_ps::<0x20>(low.0, high.0), _mm256_permute2f128_ps::<0x31>(low.0, high.0));
                (Self(_mm256_shuffle_ps::<0x88>(a, b)), Self(_mm256_shuffle_ps::<0xdd>(a, b)))
            }
        }
        #[inline(always)]
        fn pair(first: Self, second: Self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                let (a, b) = (_mm256_unpacklo_ps(first.0, second.0), _mm256_unpackhi_ps(first.0, second.0));
                (Self(_mm256_permute2f128_ps::<0x20>(a, b)), Self(_mm256_permute2f128_ps::<0x31>(a, b)))
            }
        }
        #[inline(always)]
        unsafe fn lines_to_lanes(from: *const f32, line: isize, to: *mut f32) {
            // SAFETY: the caller vouches for what is read and written, and for the processor.
            unsafe {
                for half in 0..2 {
                    // Lines that are four apart share a vector.
                    let mut v = [_mm256_setzero_ps(); 4];
                    for (l, v) in v.iter_mut().enumerate() {
                        let at = from.offset(l as isize * line).add(4 * half);
                        let low = _mm256_castps128_ps256(_mm_loadu_ps(at));
                        *v = _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(at.offset(4 * line)));
                    }
                    for (i, row) in turned(v).into_iter().enumerate() {
                        _mm256_storeu_ps(to.add((4 * half + i) * 8), row);
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn lanes_to_lines(from: *const f32, places: &[u32], to: *mut f32, line: isize) {
            // SAFETY: the caller vouches for what is read and written, and for the processor.
            unsafe {
                for half in 0..2 {
                    let (a, b) = (from.add(places[2 * half] as usize * 16), from.add(places[2 * half + 1] as usize * 16));
                    let v = [_mm256_loadu_ps(a), _mm256_loadu_ps(a.add(8)), _mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))];
                    for (i, row) in turned(v).into_iter().enumerate() {
                        let to = to.offset(i as isize * line).add(4 * half);
                        _mm_storeu_ps(to, _mm256_castps256_ps128(row));
                        _mm_storeu_ps(to.offset(4 * line), _mm256_extractf128_ps::<1>(row));
                    }
                }
            }
        }
    );

    /// Four by four, in both halves.
    ///
    /// # Safety
    /// The processor has AVX.
    #[inline(always)]
    unsafe fn turned(v: [__m256; 4]) -> [__m256; 4] {
        // SAFETY: the caller vouches for the processor.
        unsafe {
            let (a, b) = (_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
            let (c, d) = (_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
            let (a, b, c, d) = (_mm256_castps_pd(a), _mm256_castps_pd(b), _mm256_castps_pd(c), _mm256_castps_pd(d));
            [
                _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(a, c)),
                _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(b, d)),
            ]
        }
    }
}
