//! Whether something has become faster or slower, and how sure that is.
//!
//! A sample is the median of a round. Rounds differ by a factor more than by an amount, so they are compared by their
//! logarithms: the effect is the ratio of the two geometric means, and its interval comes from drawing rounds again and
//! again with replacement (the bootstrap), widened for there being few of them.

use serde::{Deserialize, Serialize};

use crate::measure::Better;

/// Rounds of each side that are needed at least.
pub const FEWEST: usize = 4;
/// What is too small to matter.
const NEGLIGIBLE: f64 = 0.01;
/// What nobody would call a change.
const SAME: f64 = 0.03;
/// Draws of the bootstrap.
const DRAWS: usize = 4000;
/// Of all draws, those outside the interval on each side.
const TAIL: f64 = 0.02;

/// What came of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Change {
    /// It is better, for sure.
    Faster,
    /// It is worse, for sure.
    Slower,
    /// There is no difference that matters, for sure.
    Same,
    /// The rounds differ too much to tell.
    Undecided,
}

impl Change {
    /// In capitals, as it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "FASTER",
            Self::Slower => "SLOWER",
            Self::Same => "SAME",
            Self::Undecided => "UNDECIDED",
        }
    }
}

/// A comparison of now with before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What came of it.
    pub change: Change,
    /// How much worse it is: 0.05 is five per cent slower, below zero is faster.
    pub effect: f64,
    /// Between these the effect is.
    pub interval: (f64, f64),
}

/// Compares the rounds of now with those of before.
///
/// ```
/// use millrace_lab::{measure::Better, verdict::{Change, compare}};
/// let before = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0];
/// let slower: Vec<f64> = before.iter().map(|ns| ns * 1.2).collect();
/// let verdict = compare(&slower, &before, Better::Lower).unwrap();
/// assert_eq!(verdict.change, Change::Slower);
/// assert!((verdict.effect - 0.2).abs() < 0.01);
/// assert_eq!(compare(&slower, &before, Better::Higher).unwrap().change, Change::Faster);
/// assert_eq!(compare(&before, &before, Better::Lower).unwrap().change, Change::Same);
/// assert!(compare(&before[..2], &before, Better::Lower).is_none(), "too few");
/// ```
pub fn compare(now: &[f64], before: &[f64], better: Better) -> Option<Verdict> {
    let logs = |rounds: &[f64]| -> Option<Vec<f64>> {
        let usable = rounds.len() >= FEWEST && rounds.iter().all(|round| round.is_finite() && *round > 0.0);
        usable.then(|| rounds.iter().map(|round| round.ln()).collect())
    };
    let (now, before) = (logs(now)?, logs(before)?);
    // Worse is up.
    let sign = match better {
        Better::Lower => 1.0,
        Better::Higher => -1.0,
    };
    let middle = sign * (mean(&now) - mean(&before));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut draws: Vec<f64> =
        (0..DRAWS).map(|_| sign * (random.mean_of_draw(&now) - random.mean_of_draw(&before))).collect();
    draws.sort_unstable_by(f64::total_cmp);
    // Draws of few rounds vary less than the rounds of another run would: by this, and by what Student found.
    let fewest = now.len().min(before.len()) as f64;
    let wider = (fewest / (fewest - 1.0)).sqrt() * (1.0 + 1.2 / fewest);
    let at = |share: f64| middle + wider * (draws[(share * (DRAWS - 1) as f64) as usize] - middle);
    let (low, high) = (at(TAIL), at(1.0 - TAIL));
    let change = if low > NEGLIGIBLE {
        Change::Slower
    } else if high < -NEGLIGIBLE {
        Change::Faster
    } else if low > -SAME && high < SAME {
        Change::Same
    } else {
        Change::Undecided
    };
    Some(Verdict { change, effect: middle.exp_m1(), interval: (low.exp_m1(), high.exp_m1()) })
}

/// Where the median of another run like this would be, 96 times of 100, as far as the rounds tell; none for fewer than
/// three of them.
///
/// ```
/// let (low, high) = millrace_lab::verdict::interval(&[99.0, 100.0, 101.0, 100.0]).unwrap();
/// assert!(98.0 < low && low <= 100.0 && 100.0 <= high && high < 102.0);
/// assert!(millrace_lab::verdict::interval(&[1.0, 2.0]).is_none());
/// ```
pub fn interval(rounds: &[f64]) -> Option<(f64, f64)> {
    if rounds.len() < 3 || !rounds.iter().all(|round| round.is_finite() && *round > 0.0) {
        return None;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut drawn = vec![0.0; rounds.len()];
    let mut median_of_draw = || {
        drawn.fill_with(|| rounds[(random.next() % rounds.len() as u64) as usize]);
        drawn.sort_unstable_by(f64::total_cmp);
        crate::measure::percentile(&drawn, 0.5)
    };
    let mut draws: Vec<f64> = (0..DRAWS / 4).map(|_| median_of_draw()).collect();
    draws.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| draws[(share * (draws.len() - 1) as f64) as usize];
    Some((at(TAIL), at(1.0 - TAIL)))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Numbers that are as good as random, and the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn mean_of_draw(&mut self, values: &[f64]) -> f64 {
        let draw = |random: &mut Self| values[(random.next() % values.len() as u64) as usize];
        (0..values.len()).map(|_| draw(self)).sum::<f64>() / values.len() as f64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// Rounds of something that takes 100, with noise as machines have it: a few per cent, and now and then much more.
    fn rounds(random: &mut Random, count: usize, factor: f64, noise: f64) -> Vec<f64> {
        let mut share = || (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let mut round = || {
            let normal = (0..12).map(|_| share()).sum::<f64>() - 6.0;
            let hit = if share() < 0.05 { 4.0 * noise } else { 0.0 };
            100.0 * factor * (noise * normal + hit).exp()
        };
        (0..count).map(|_| round()).collect()
    }

    fn share_of(change: Change, factor: f64, noise: f64, count: usize) -> f64 {
        let mut random = Random(7);
        let runs = 400;
        let found = (0..runs).filter(|_| {
            let (before, now) = (rounds(&mut random, count, 1.0, noise), rounds(&mut random, count, factor, noise));
            compare(&now, &before, Better::Lower).unwrap().change == change
        });
        found.count() as f64 / runs as f64
    }

    #[test]
    fn five_per_cent_are_found() {
        assert!(share_of(Change::Slower, 1.05, 0.01, 10) > 0.95);
        assert!(share_of(Change::Slower, 1.05, 0.02, 20) > 0.95);
        assert!(share_of(Change::Faster, 1.0 / 1.05, 0.01, 10) > 0.95);
    }

    #[test]
    fn equal_code_is_not_called_slower_more_than_one_time_in_twenty() {
        for (noise, count) in [(0.002, 5), (0.01, 5), (0.01, 10), (0.03, 10), (0.1, 10), (0.03, 30)] {
            for change in [Change::Slower, Change::Faster] {
                let share = share_of(change, 1.0, noise, count);
                assert!(share < 0.05, "{change:?} in {share} of all, {count} rounds with noise {noise}");
            }
        }
    }

    #[test]
    fn what_is_quiet_is_the_same_and_what_is_not_is_undecided() {
        assert!(share_of(Change::Same, 1.0, 0.01, 10) > 0.9);
        assert!(share_of(Change::Undecided, 1.0, 0.2, 5) > 0.9);
    }

    #[test]
    fn rounds_that_make_no_sense_are_no_basis() {
        assert!(compare(&[1.0; 5], &[0.0; 5], Better::Lower).is_none());
        assert!(compare(&[f64::NAN; 5], &[1.0; 5], Better::Lower).is_none());
        assert!(compare(&[], &[1.0; 5], Better::Lower).is_none());
    }
}
