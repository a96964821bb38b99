//! The innermost loops: a few rows of a left factor times a panel of a right one.
//!
//! The left factor's numbers have signs, the panel's are 128 more and have none: that is what the instructions take. All
//! levels give the same sums, which wrap around at 32 bits.

use std::sync::OnceLock;

use super::PANEL;
use crate::Simd;

/// Rows of a tile.
pub(super) const ROWS: usize = 12;

/// The sums of a tile, in lines of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Sums(pub(super) [[i32; PANEL]; ROWS]);

impl Default for Sums {
    fn default() -> Self {
        Self([[0; PANEL]; ROWS])
    }
}

impl Sums {
    #[inline(always)]
    pub(super) fn clear(&mut self, rows: usize) {
        self.0[..rows].fill([0; PANEL]);
    }
}

/// Instructions that multiply numbers in eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// What the compiler makes of plain loops.
    Scalar,
    /// 256 bits, in pairs of 16 bits: those of 8 bits saturate.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 256 bits, four products at a time.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// 512 bits, four products at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Level {
    /// All that this processor has, up to what other operations may use, the fastest last.
    pub(super) fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let most = Simd::in_use();
            let mut all = vec![Self::Scalar];
            let avx2 = most >= Simd::Avx2 && is_x86_feature_detected!("avx2");
            let vnni = avx2 && is_x86_feature_detected!("avxvnni");
            let wide = most >= Simd::Avx512
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vnni");
            let levels = [(avx2, Self::Avx2), (vnni, Self::AvxVnni), (wide, Self::Avx512Vnni)];
            all.extend(levels.into_iter().filter(|(is, _)| *is).map(|(_, level)| level));
            all
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = Simd::in_use();
            vec![Self::Scalar]
        }
    }

    /// The fastest.
    pub(super) fn in_use() -> Self {
        static CHOSEN: OnceLock<Level> = OnceLock::new();
        *CHOSEN.get_or_init(|| Self::all().pop().unwrap_or(Self::Scalar))
    }
}

/// Adds the products of `rows` rows, which are `stride` words apart, and a panel.
#[inline]
pub(super) fn tile(level: Level, a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
    let steps = b.len() / PANEL;
    assert!((1..=ROWS).contains(&rows) && (rows - 1) * stride + steps <= a.len(), "rows are inside their factor");
    match level {
        Level::Scalar => scalar(a, stride, rows, b, sums),
        // SAFETY: a level is only made if the processor has it; rows and steps were just found to be inside.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::avx2(a, stride, rows, b, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => unsafe { x86::avx_vnni(a, stride, rows, b, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni => unsafe { x86::avx512_vnni(a, stride, rows, b, sums) },
    }
}

fn scalar(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
    for (row, sums) in sums.0[..rows].iter_mut().enumerate() {
        for (step, panel) in b.chunks_exact(PANEL).enumerate() {
            let [a0, a1, a2, a3] = a[row * stride + step].to_le_bytes().map(|x| i32::from(x as i8));
            for (sum, word) in sums.iter_mut().zip(panel) {
                let word = *word as i32;
                let (b0, b1, b2, b3) = (word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24 & 255);
                *sum = sum.wrapping_add(a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{PANEL, ROWS, Sums};

    /// Calls a function with a number of rows that is known when it is compiled.
    macro_rules! by_rows {
        ($rows:expr, $function:ident $arguments:tt, [$($n:literal)*]) => {
            match $rows {
                $($n => $function::<$n> $arguments,)*
                _ => {}
            }
        };
    }

    /// # Safety
    /// The processor has AVX-512 F, BW and VNNI; `a` has `rows` rows, at most [`ROWS`], of as many words as `b` has steps.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn avx512_vnni(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        // SAFETY: as the caller says.
        unsafe { by_rows!(rows, wide(a, stride, b, sums), [1 2 3 4 5 6 7 8 9 10 11 12]) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn wide<const R: usize>(a: &[u32], stride: usize, b: &[u32], sums: &mut Sums) {
        const { assert!(R <= ROWS && PANEL == 32) };
        let (a, to) = (a.as_ptr(), sums.0.as_mut_ptr());
        // SAFETY: `R` rows of sums have two registers each; a step of `b` has two; steps and rows of `a` are inside, as the
        // caller says.
        unsafe {
            let mut all = [[_mm512_setzero_si512(); 2]; R];
            for r in 0..R {
                for half in 0..2 {
                    all[r][half] = _mm512_loadu_si512(to.add(r).cast::<i32>().add(16 * half).cast());
                }
            }
            for step in 0..b.len() / PANEL {
                let from = b.as_ptr().add(step * PANEL);
                let (left, right) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
                for r in 0..R {
                    let four = _mm512_set1_epi32(*a.add(r * stride + step) as i32);
                    all[r][0] = _mm512_dpbusd_epi32(all[r][0], left, four);
                    all[r][1] = _mm512_dpbusd_epi32(all[r][1], right, four);
                }
            }
            for r in 0..R {
                for half in 0..2 {
                    _mm512_storeu_si512(to.add(r).cast::<i32>().add(16 * half).cast(), all[r][half]);
                }
            }
        }
    }

    /// # Safety
    /// The processor has AVX2 and AVX-VNNI; otherwise as [`avx512_vnni`].
    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn avx_vnni(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        for half in 0..2 {
            for row in (0..rows).step_by(6) {
                let count = (rows - row).min(6);
                // SAFETY: rows from `row` on are inside, as the caller says, and both halves of a panel are.
                unsafe { by_rows!(count, half_vnni(&a[row * stride..], stride, b, sums, row, half), [1 2 3 4 5 6]) }
            }
        }
    }

    /// `R` rows by half a panel.
    #[target_feature(enable = "avx2,avxvnni")]
    unsafe fn half_vnni<const R: usize>(a: &[u32], stride: usize, b: &[u32], sums: &mut Sums, row: usize, half: usize) {
        let a = a.as_ptr();
        // SAFETY: as in `wide`, with registers of half the size.
        unsafe {
            let to = sums.0.as_mut_ptr().add(row).cast::<i32>().add(16 * half);
            let mut all = [[_mm256_setzero_si256(); 2]; R];
            for r in 0..R {
                for part in 0..2 {
                    all[r][part] = _mm256_loadu_si256(to.add(r * PANEL + 8 * part).cast());
                }
            }
            for step in 0..b.len() / PANEL {
                let from = b.as_ptr().add(step * PANEL + 16 * half);
                let (left, right) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast()));
                for r in 0..R {
                    let four = _mm256_set1_epi32(*a.add(r * stride + step) as i32);
                    all[r][0] = _mm256_dpbusd_avx_epi32(all[r][0], left, four);
                    all[r][1] = _mm256_dpbusd_avx_epi32(all[r][1], right, four);
                }
            }
            for r in 0..R {
                for part in 0..2 {
                    _mm256_storeu_si256(to.add(r * PANEL + 8 * part).cast(), all[r][part]);
                }
            }
        }
    }

    /// # Safety
    /// The processor has AVX2; otherwise as [`avx512_vnni`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        for half in 0..2 {
            for row in (0..rows).step_by(4) {
                let count = (rows - row).min(4);
                // SAFETY: rows from `row` on are inside, as the caller says, and both halves of a panel are.
                unsafe { by_rows!(count, half_pairs(&a[row * stride..], stride, b, sums, row, half), [1 2 3 4]) }
            }
        }
    }

    /// `R` rows by half a panel: the even and the odd ones of four numbers as pairs of 16 bits.
    #[target_feature(enable = "avx2")]
    unsafe fn half_pairs<const R: usize>(a: &[u32], stride: usize, b: &[u32], sums: &mut Sums, row: usize, half: usize) {
        let a = a.as_ptr();
        // SAFETY: as in `wide`, with registers of half the size.
        unsafe {
            let to = sums.0.as_mut_ptr().add(row).cast::<i32>().add(16 * half);
            let mut all = [[_mm256_setzero_si256(); 2]; R];
            for r in 0..R {
                for part in 0..2 {
                    all[r][part] = _mm256_loadu_si256(to.add(r * PANEL + 8 * part).cast());
                }
            }
            let even = _mm256_set1_epi16(255);
            for step in 0..b.len() / PANEL {
                let from = b.as_ptr().add(step * PANEL + 16 * half);
                let both = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())];
                for r in 0..R {
                    let four = _mm256_set1_epi32(*a.add(r * stride + step) as i32);
                    let (low, high) = (_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8));
                    for part in 0..2 {
                        let products = _mm256_add_epi32(
                            _mm256_madd_epi16(_mm256_and_si256(both[part], even), low),
                            _mm256_madd_epi16(_mm256_srli_epi16(both[part], 8), high),
                        );
                        all[r][part] = _mm256_add_epi32(all[r][part], products);
                    }
                }
            }
            for r in 0..R {
                for part in 0..2 {
                    _mm256_storeu_si256(to.add(r * PANEL + 8 * part).cast(), all[r][part]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(seed: u32, n: usize) -> Vec<u32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state ^ state >> 16
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn all_levels_give_the_same_sums() {
        for (rows, steps, stride) in [(1, 1, 1), (12, 7, 9), (5, 130, 130), (11, 64, 70), (4, 3, 3), (7, 2, 2)] {
            let (a, b) = (words(1, rows * stride), words(2, steps * PANEL));
            let mut start = Sums::default();
            start.0.iter_mut().flatten().enumerate().for_each(|(i, sum)| *sum = i as i32 * 77 - 9000);
            let mut want = start.clone();
            for (row, sums) in want.0[..rows].iter_mut().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    for step in 0..steps {
                        let (left, right) = (a[row * stride + step].to_le_bytes(), b[step * PANEL + column].to_le_bytes());
                        for (left, right) in left.into_iter().zip(right) {
                            *sum += i32::from(left as i8) * i32::from(right);
                        }
                    }
                }
            }
            for level in Level::all() {
                let mut got = start.clone();
                tile(level, &a, stride, rows, &b, &mut got);
                assert_eq!(got, want, "{level:?}, {rows} rows, {steps} steps");
            }
        }
    }

    #[test]
    fn extremes_do_not_saturate_and_sums_wrap() {
        // -128 times 255, four times a step: pairs of them do not fit into 16 bits.
        let (a, b) = (vec![0x8080_8080; 20_000], vec![u32::MAX; 20_000 * PANEL]);
        let want = (20_000i64 * 4 * -128 * 255) as i32;
        for level in Level::all() {
            let mut got = Sums::default();
            tile(level, &a, 20_000, 1, &b, &mut got);
            assert_eq!(got.0[0], [want; PANEL], "{level:?}");
            assert_eq!(got.0[1], [0; PANEL]);
        }
    }
}
