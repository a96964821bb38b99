//! The libraries, and how they are timed: in turns, block by block, in one process.

use std::{
    error::Error,
    hint::black_box,
    rc::Rc,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use millrace::tensor::Tensors;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One library's way to do a case.
pub struct Side {
    pub name: &'static str,
    /// Does it once, until the result is there.
    run: Box<dyn Fn() -> Result<()>>,
    /// Does it once and reads the result.
    read: Box<dyn Fn() -> Result<Vec<f32>>>,
}

impl Side {
    pub fn ours(tensors: &Tensors, compute: impl Fn() -> Result<millrace::tensor::Tensor> + 'static) -> Self {
        let (tensors, compute) = (tensors.clone(), Rc::new(compute));
        let again = compute.clone();
        let run = move || {
            let _result = black_box(compute()?);
            Ok(tensors.synchronize()?)
        };
        Self { name: "millrace", run: Box::new(run), read: Box::new(move || Ok(again()?.to_vec::<f32>()?)) }
    }

    pub fn burns<const D: usize>(
        name: &'static str,
        device: &Device,
        compute: impl Fn() -> burn::Tensor<D> + 'static,
    ) -> Self {
        let (device, compute) = (device.clone(), Rc::new(compute));
        let again = compute.clone();
        let run = move || {
            let _result = black_box(compute());
            device.sync().map_err(|error| format!("{error:?}").into())
        };
        let read = move || again().try_into_data()?.try_to_vec::<f32>().map_err(|error| format!("{error:?}").into());
        Self { name, run: Box::new(run), read: Box::new(read) }
    }

    /// Does it again and again for so long, at least once, and notes how many microseconds it took. What is brief is
    /// timed several times at once, since reading the clock takes time, too.
    fn block(&self, budget: Duration, at_once: u32, times: &mut Vec<f64>) -> Result<()> {
        let begin = Instant::now();
        loop {
            let from = Instant::now();
            for _ in 0..at_once {
                (self.run)()?;
            }
            times.push(from.elapsed().as_secs_f64() * 1e6 / f64::from(at_once));
            if begin.elapsed() >= budget {
                return Ok(());
            }
        }
    }
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    /// Per side and round.
    pub block: Duration,
}

/// Compares all results with the first side's and answers with the largest difference, relative to the largest number.
pub fn difference(sides: &[Side]) -> Result<f64> {
    let Some((first, others)) = sides.split_first() else { return Ok(0.0) };
    let expected = (first.read)()?;
    let scale = expected.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
    let mut most = 0.0f64;
    for side in others {
        let got = (side.read)()?;
        if got.len() != expected.len() {
            return Err(
                format!("{} has {} elements, {} has {}", side.name, got.len(), first.name, expected.len()).into()
            );
        }
        for (at, (x, y)) in expected.iter().zip(&got).enumerate() {
            let off = f64::from((x - y).abs()) / scale;
            if off.is_nan() || off > 1e-4 {
                return Err(format!("element {at} is {y} from {}, but {x} from {}", side.name, first.name).into());
            }
            most = most.max(off);
        }
    }
    Ok(most)
}

/// Times of every side in microseconds, sorted.
pub fn measure(sides: &[Side], effort: Effort) -> Result<Vec<Vec<f64>>> {
    let mut at_once = Vec::new();
    for side in sides {
        let mut warm = Vec::new();
        side.block(effort.block / 3, 1, &mut warm)?;
        let least = warm.into_iter().fold(f64::INFINITY, f64::min);
        at_once.push((20.0 / least).ceil().clamp(1.0, 1000.0) as u32);
    }
    let mut times = vec![Vec::new(); sides.len()];
    for _ in 0..effort.rounds {
        for ((side, at_once), times) in sides.iter().zip(&at_once).zip(&mut times) {
            side.block(effort.block, *at_once, times)?;
        }
    }
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    Ok(times)
}

/// What half of the sorted times are below.
pub fn median(sorted: &[f64]) -> f64 {
    match (sorted.get((sorted.len().max(1) - 1) / 2), sorted.get(sorted.len() / 2)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
}
