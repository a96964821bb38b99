//! The innermost loops: a few rows of a left factor times a panel of a right one.
//!
//! The left factor's numbers have signs, the panel's are 128 more and have none: that is what the instructions take. All
//! levels give the same sums, which wrap around at 32 bits.

#[cfg(target_arch = "x86_64")]
mod amx;

use std::sync::OnceLock;

use super::PANEL;
use crate::Simd;

/// Rows of a tile, at most.
pub(super) const ROWS: usize = 32;
/// Rows that vector registers hold the sums of.
#[cfg(target_arch = "x86_64")]
const HELD: usize = 12;

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
    /// 16 by 16 sums of 64 products at a time.
    #[cfg(target_arch = "x86_64")]
    Amx,
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
            let amx = wide && amx::is_there();
            let levels = [(avx2, Self::Avx2), (vnni, Self::AvxVnni), (wide, Self::Avx512Vnni), (amx, Self::Amx)];
            all.extend(levels.into_iter().filter(|(is, _)| *is).map(|(_, level)| level));
            all
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = Simd::in_use();
            vec![Self::Scalar]
        }
    }

    /// What is best for a product of so many rows and steps: small ones do not fill large tiles.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "all tiles are small"))]
    pub(super) fn suited(self, rows: usize, steps: usize) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx if rows < amx::ROWS || steps < amx::WORDS => Self::Avx512Vnni,
            _ => self,
        }
    }

    /// Rows of its tiles.
    pub(super) fn rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => 2 * amx::ROWS,
            _ => 12,
        }
    }

    /// Words of the common axis that are best gone through at a time. With these a panel stays in the nearest cache; larger
    /// tiles use it less often, and would rather not be put away.
    pub(super) fn depth(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => 1024,
            _ => 128,
        }
    }

    /// The fastest.
    pub(super) fn in_use() -> Self {
        static CHOSEN: OnceLock<Level> = OnceLock::new();
        *CHOSEN.get_or_init(|| Self::all().pop().unwrap_or(Self::Scalar))
    }
}

/// A thread that multiplies.
pub(super) struct Multiplier {
    level: Level,
    #[cfg(target_arch = "x86_64")]
    registers: Option<amx::Registers>,
}

impl Multiplier {
    /// With a level that [`Level::all`] has.
    pub(super) fn new(level: Level) -> Self {
        Self {
            level,
            #[cfg(target_arch = "x86_64")]
            registers: if level == Level::Amx { amx::Registers::take() } else { None },
        }
    }

    /// Adds the products of `rows` rows, which are `stride` words apart, and a panel.
    #[inline]
    pub(super) fn add(&self, a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        let steps = b.len() / PANEL;
        assert!((1..=ROWS).contains(&rows) && (rows - 1) * stride + steps <= a.len(), "rows are inside their factor");
        match self.level {
            Level::Scalar => scalar(a, stride, rows, b, sums),
            #[cfg(target_arch = "x86_64")]
            level => self.vectors(level, a, stride, rows, b, sums),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn vectors(&self, level: Level, a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut Sums) {
        let steps = b.len() / PANEL;
        // Whole registers of AMX, and the rest with vectors: the last rows, then the last steps of the others.
        let (mut whole, mut deep) = (0, 0);
        if let Some(registers) = self.registers.as_ref().filter(|_| steps >= amx::WORDS && rows >= amx::ROWS) {
            (whole, deep) = (rows / amx::ROWS * amx::ROWS, steps / amx::WORDS * amx::WORDS);
            registers.multiply(a, stride, whole, &b[..deep * PANEL], sums);
        }
        for row in (whole..rows).step_by(HELD) {
            let count = HELD.min(rows - row);
            // SAFETY: a level is only made if the processor has it; rows and steps are inside, as `add` found.
            unsafe { x86::some(level, &a[row * stride..], stride, count, b, &mut sums.0[row..row + count]) };
        }
        for row in (0..if deep < steps { whole } else { 0 }).step_by(HELD) {
            let count = HELD.min(whole - row);
            let (a, b) = (&a[row * stride + deep..], &b[deep * PANEL..]);
            // SAFETY: as above.
            unsafe { x86::some(level, a, stride, count, b, &mut sums.0[row..row + count]) };
        }
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
#[allow(clippy::needless_range_loop, reason = "rows and halves are unrolled, and number registers and memory alike")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{HELD, Level, PANEL};

    /// Calls a function with a number of rows that is known when it is compiled.
    macro_rules! by_rows {
        ($rows:expr, $function:ident $arguments:tt, [$($n:literal)*]) => {
            match $rows {
                $($n => $function::<$n> $arguments,)*
                _ => {}
            }
        };
    }

    /// A few rows, with vectors.
    ///
    /// # Safety
    /// The processor has the level; `a` has `rows` rows, at most [`HELD`], of as many words as `b` has steps, and `sums` has
    /// as many rows.
    pub(super) unsafe fn some(
        level: Level,
        a: &[u32],
        stride: usize,
        rows: usize,
        b: &[u32],
        sums: &mut [[i32; PANEL]],
    ) {
        assert!(sums.len() == rows && rows <= HELD, "a row of sums for every row");
        // SAFETY: as the caller says.
        unsafe {
            match level {
                Level::Scalar | Level::Avx2 => avx2(a, stride, rows, b, sums),
                Level::AvxVnni => avx_vnni(a, stride, rows, b, sums),
                Level::Avx512Vnni | Level::Amx => avx512_vnni(a, stride, rows, b, sums),
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512 F, BW and VNNI; otherwise as [`some`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn avx512_vnni(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut [[i32; PANEL]]) {
        // SAFETY: as the caller says.
        unsafe { by_rows!(rows, wide(a, stride, b, sums), [1 2 3 4 5 6 7 8 9 10 11 12]) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn wide<const R: usize>(a: &[u32], stride: usize, b: &[u32], sums: &mut [[i32; PANEL]]) {
        const { assert!(R <= HELD && PANEL == 32) };
        let (a, to) = (a.as_ptr(), sums.as_mut_ptr());
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
    /// The processor has AVX2 and AVX-VNNI; otherwise as [`some`].
    #[target_feature(enable = "avx2,avxvnni")]
    unsafe fn avx_vnni(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut [[i32; PANEL]]) {
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
    unsafe fn half_vnni<const R: usize>(
        a: &[u32],
        stride: usize,
        b: &[u32],
        sums: &mut [[i32; PANEL]],
        row: usize,
        half: usize,
    ) {
        let a = a.as_ptr();
        // SAFETY: as in `wide`, with registers of half the size.
        unsafe {
            let to = sums.as_mut_ptr().add(row).cast::<i32>().add(16 * half);
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
    /// The processor has AVX2; otherwise as [`some`].
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(a: &[u32], stride: usize, rows: usize, b: &[u32], sums: &mut [[i32; PANEL]]) {
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
    unsafe fn half_pairs<const R: usize>(
        a: &[u32],
        stride: usize,
        b: &[u32],
        sums: &mut [[i32; PANEL]],
        row: usize,
        half: usize,
    ) {
        let a = a.as_ptr();
        // SAFETY: as in `wide`, with registers of half the size.
        unsafe {
            let to = sums.as_mut_ptr().add(row).cast::<i32>().add(16 * half);
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
        for (rows, steps, stride) in [
            (1, 1, 1),
            (12, 7, 9),
            (5, 130, 130),
            (11, 64, 70),
            (4, 3, 3),
            (7, 2, 2),
            (16, 16, 16),
            (32, 48, 48),
            (31, 37, 40),
            (32, 15, 16),
            (17, 16, 20),
            (25, 33, 33),
        ] {
            let (a, b) = (words(1, rows * stride), words(2, steps * PANEL));
            let mut start = Sums::default();
            start.0.iter_mut().flatten().enumerate().for_each(|(i, sum)| *sum = i as i32 * 77 - 9000);
            let mut want = start.clone();
            for (row, sums) in want.0[..rows].iter_mut().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    for step in 0..steps {
                        let (left, right) =
                            (a[row * stride + step].to_le_bytes(), b[step * PANEL + column].to_le_bytes());
                        for (left, right) in left.into_iter().zip(right) {
                            *sum += i32::from(left as i8) * i32::from(right);
                        }
                    }
                }
            }
            for level in Level::all() {
                let mut got = start.clone();
                Multiplier::new(level).add(&a, stride, rows, &b, &mut got);
                assert_eq!(got, want, "{level:?}, {rows} rows, {steps} steps");
            }
        }
    }

    #[test]
    fn extremes_do_not_saturate_and_sums_wrap() {
        // -128 times 255, four times a step: pairs of them do not fit into 16 bits.
        let (a, b) = (vec![0x8080_8080; 16 * 20_000], vec![u32::MAX; 20_000 * PANEL]);
        let want = (20_000i64 * 4 * -128 * 255) as i32;
        for (level, rows) in Level::all().into_iter().flat_map(|level| [(level, 1), (level, 16)]) {
            let mut got = Sums::default();
            Multiplier::new(level).add(&a, 20_000, rows, &b, &mut got);
            assert!(got.0[..rows].iter().all(|row| *row == [want; PANEL]), "{level:?}");
            assert!(got.0[rows..].iter().all(|row| *row == [0; PANEL]), "{level:?}");
        }
    }
}
