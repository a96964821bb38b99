//! How often numbers of which magnitude were seen.

/// Bins on either side of zero.
const BINS: usize = 2048;
/// Magnitudes that a number of eight bits can have: those of one side.
const LEVELS: usize = 128;

/// Counts of numbers in equally wide bins from `-reach` to `reach`. It grows by doubling, pairs of bins becoming one.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    reach: f64,
    counts: Vec<u64>,
}

impl Histogram {
    /// For numbers up to a magnitude.
    pub(super) fn new(reach: f32) -> Self {
        Self { reach: f64::from(reach), counts: vec![0; 2 * BINS] }
    }

    /// Makes room for numbers up to a magnitude.
    pub(super) fn grow(&mut self, reach: f32) {
        let reach = f64::from(reach);
        if self.reach == 0.0 {
            // Zeros so far, which are in the first bin above zero whatever the reach.
            self.reach = reach;
        }
        while self.reach < reach {
            let old = std::mem::replace(&mut self.counts, vec![0; 2 * BINS]);
            for (pair, counts) in old.chunks_exact(2).enumerate() {
                self.counts[BINS / 2 + pair] = counts[0] + counts[1];
            }
            self.reach *= 2.0;
        }
    }

    pub(super) fn add(&mut self, x: f32) {
        let place = if self.reach == 0.0 { 0.0 } else { f64::from(x) / self.reach * BINS as f64 };
        let bin = (place.floor() + BINS as f64).clamp(0.0, (2 * BINS - 1) as f64);
        self.counts[bin as usize] += 1;
    }

    /// Where a bin begins.
    fn edge(&self, bin: usize) -> f32 {
        ((bin as f64 - BINS as f64) / BINS as f64 * self.reach) as f32
    }

    /// Both sides in one, by magnitude.
    fn magnitudes(&self) -> Vec<u64> {
        (0..BINS).map(|bin| self.counts[BINS + bin] + self.counts[BINS - 1 - bin]).collect()
    }

    /// A range that a share of the numbers is in. What is left out is of the largest magnitude, or half of it is at each
    /// end.
    pub(super) fn range(&self, share: f64, by_magnitude: bool) -> (f32, f32) {
        let total: u64 = self.counts.iter().sum();
        let may_miss = ((1.0 - share) * total as f64).max(0.0);
        let cut = |counts: &mut dyn Iterator<Item = u64>, may_miss: f64| {
            let mut missed = 0;
            counts
                .take_while(|count| {
                    missed += count;
                    missed as f64 <= may_miss
                })
                .count()
        };
        if by_magnitude {
            let cut = cut(&mut self.magnitudes().into_iter().rev(), may_miss);
            let reach = self.edge(2 * BINS - cut);
            return (-reach, reach);
        }
        let above = cut(&mut self.counts.iter().rev().copied(), may_miss / 2.0);
        let below = cut(&mut self.counts.iter().copied(), may_miss / 2.0);
        (self.edge(below), self.edge(2 * BINS - above))
    }

    /// The magnitude to clip at for which the distribution in eight bits is nearest to what was seen: Migacz's method (8-bit
    /// inference with TensorRT, 2017). Of every possible threshold, what is above is counted into the last bin, the rest
    /// is spread over as many levels as there are, and the divergence of Kullback and Leibler between both is the smallest.
    pub(super) fn least_divergent(&self) -> f32 {
        let counts = self.magnitudes();
        let last = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let first = LEVELS.min(last);
        let (mut best, mut threshold) = (f64::INFINITY, last);
        for bins in first.max(1)..=last.max(1) {
            let above: u64 = counts[bins..].iter().sum();
            let divergence = divergence(&counts[..bins], above);
            // Of equal ones the widest.
            if divergence <= best {
                (best, threshold) = (divergence, bins);
            }
        }
        self.edge(BINS + threshold)
    }
}

fn divergence(counts: &[u64], above: u64) -> f64 {
    let bins = counts.len();
    let levels = LEVELS.min(bins);
    let inside: u64 = counts.iter().sum();
    let total = (inside + above) as f64;
    if inside == 0 {
        return f64::INFINITY;
    }
    let mut sum = 0.0;
    for level in 0..levels {
        let range = level * bins / levels..(level + 1) * bins / levels;
        let seen = &counts[range.clone()];
        let filled = seen.iter().filter(|&&count| count > 0).count();
        let mass: u64 = seen.iter().sum();
        for (bin, &count) in range.zip(seen) {
            let clipped = if bin + 1 == bins { above } else { 0 };
            let p = (count + clipped) as f64 / total;
            if p == 0.0 {
                continue;
            }
            // What is clipped into a bin that was empty is spread as thinly as can be.
            let q = if count > 0 { mass as f64 / filled as f64 / inside as f64 } else { 1e-9 };
            sum += p * (p / q).ln();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_every_number_on_its_side() {
        let mut histogram = Histogram::new(1.0);
        [-1.0, -0.5, 0.0, 0.25, 1.0].into_iter().for_each(|x| histogram.add(x));
        histogram.grow(7.0);
        histogram.add(-7.0);
        assert_eq!(histogram.reach, 8.0);
        assert_eq!(histogram.counts[..BINS].iter().sum::<u64>(), 3);
        assert_eq!(histogram.counts[BINS..].iter().sum::<u64>(), 3);
        let (low, high) = histogram.range(1.0, false);
        assert!((-7.01..=-7.0).contains(&low) && (1.0..=1.01).contains(&high), "{low} to {high}");
    }

    #[test]
    fn a_histogram_of_zeros_takes_what_comes() {
        let mut histogram = Histogram::new(0.0);
        histogram.add(0.0);
        histogram.grow(2.0);
        histogram.add(2.0);
        let (low, high) = histogram.range(1.0, false);
        assert_eq!((low, high), (0.0, 2.0));
    }
}
